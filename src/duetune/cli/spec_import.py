"""``duetune import``."""

from __future__ import annotations

from pathlib import Path

import click

from duetune.cli.spec_files import (
    FileDocument,
    NoteLine,
    check_target,
    given_file,
    output_options,
    print_json,
)
from duetune.files import write_whole

TOOLS = ("auto", "skypilot", "axolotl", "llamafactory", "trl")


class ImportDocument(FileDocument, frozen=True, kw_only=True):
    """``spec`` is the job spec, without what is as by default."""

    tool: str
    spec: dict[str, object]


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option(
    "--from",
    "tool",
    type=click.Choice(TOOLS),
    default="auto",
    show_default=True,
    help="Whose file it is; auto tells by its fields.",
)
@click.option("--deadline", metavar="WHEN", help="8h, 2d4h, or a moment; a day if not given.")
@output_options
def import_(
    file: str,
    tool: str,
    deadline: str | None,
    output: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """A job spec from a file of SkyPilot, axolotl, LLaMA-Factory or TRL; - is standard input.

    What cannot be carried over is listed in the first lines of the spec.
    """
    from duetune.interop.import_jobs.reading import Imported, Tool, import_job, relocated

    target = check_target(output, force=force)
    source = given_file(file)
    imported = import_job(source, None if tool == "auto" else Tool(tool), deadline=deadline)
    if target is not None and isinstance(source, Path):
        moved = relocated(imported.spec, source.parent, target.parent)
        imported = Imported(imported.tool, moved, imported.notes)
    name = source.name if isinstance(source, Path) else "standard input"
    text = imported.to_yaml(name)
    if target is not None:
        write_whole(target, text, "--output")
    if as_json:
        print_json(
            ImportDocument(
                command="import",
                file=file,
                output=output,
                tool=str(imported.tool),
                spec=imported.spec.document(),
                notes=NoteLine.of(imported.notes),
            )
        )
    elif target is None:
        click.echo(text, nl=False)
    else:
        count = len(imported.notes)
        words = "1 note" if count == 1 else f"{count} notes"
        click.echo(f"Wrote {output} from {imported.tool}; {words} in its first lines.")
