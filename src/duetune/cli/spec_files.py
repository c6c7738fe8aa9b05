"""``duetune import``, ``export`` and ``schema``: job specs, and the files of other tools.

The conversions themselves are in ``duetune.interop``; its modules are imported when a command runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from duetune.cli.context import Answer, json_option, print_answer
from duetune.errors import InvalidInput
from duetune.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.jobs.spec.conversion_notes import Note

    Body = Callable[..., int | None]

STANDARD = "-"
TOOLS = ("auto", "skypilot", "axolotl", "llamafactory", "trl")
TARGETS = ("skypilot", "trainjob", "rayjob", "sbatch")


class NoteLine(msgspec.Struct, frozen=True):
    """One note in a JSON document: a field and how it differs in the other tool."""

    field: str
    says: str

    @classmethod
    def of(cls, notes: tuple[Note, ...]) -> tuple[NoteLine, ...]:
        """Convert the notes of a conversion, in their order."""
        return tuple(cls(note.field, note.says) for note in notes)


class FileDocument(Answer, frozen=True, kw_only=True):
    """The fields that the JSON documents of ``import`` and ``export`` share."""

    file: str
    output: str | None
    notes: tuple[NoteLine, ...]


class ImportDocument(FileDocument, frozen=True, kw_only=True):
    """The answer of ``import --json``. ``spec`` leaves out fields that have their default value."""

    tool: str
    spec: dict[str, object]


class ExportDocument(FileDocument, frozen=True, kw_only=True):
    """The answer of ``export --json``: the other tool's file, and the commands that start it."""

    target: str
    text: str
    launch: tuple[str, ...]


def _output_options(body: Body) -> Body:
    for option in (
        json_option,
        click.option("--force", is_flag=True, help="Replace the file of -o if it exists."),
        click.option(
            "-o", "--output", metavar="FILE", help="Write to this file, not to standard output."
        ),
    ):
        body = option(body)
    return body


@click.command("import")
@click.argument("file", metavar="FILE")
@click.option(
    "--from",
    "tool",
    type=click.Choice(TOOLS),
    default="auto",
    help="The tool that the file is for. auto detects it by the file's fields.",
)
@click.option(
    "--deadline", metavar="WHEN", help="8h, 2d4h, or a date and time.  [default: one day]"
)
@_output_options
def import_(
    file: str,
    tool: str,
    deadline: str | None,
    output: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Convert a file of SkyPilot, axolotl, LLaMA-Factory or TRL to a job spec.

    FILE may be - for standard input. The first lines of the spec list what could not be converted.
    With -o, relative paths are rewritten so that they are valid from the new file.
    """
    from duetune.interop.import_jobs.reading import Tool, import_job, written

    target = _check_target(output, force=force)
    source = _given_file(file)
    imported = import_job(source, None if tool == "auto" else Tool(tool), deadline=deadline)
    if target is not None and isinstance(source, Path):
        imported = written(imported, source.parent, target, force=force)
    name = source.name if isinstance(source, Path) else "standard input"
    text = imported.to_yaml(name)
    if target is not None:
        write_whole(target, text, "--output")
    if as_json:
        print_answer(
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


@click.command()
@click.argument("file", metavar="JOB")
@click.option(
    "--to",
    "target",
    type=click.Choice(TARGETS),
    required=True,
    help="A SkyPilot task, a Kubeflow TrainJob, a KubeRay RayJob, or a Slurm script.",
)
@click.option(
    "--gpus",
    type=int,
    metavar="N",
    help="Number of GPUs, within the spec's range.  [default: the spec's maximum]",
)
@click.option(
    "--image", metavar="NAME", help="A container image with duetune, for trainjob and rayjob."
)
@_output_options
def export(
    file: str,
    target: str,
    gpus: int | None,
    image: str | None,
    output: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Convert a job spec to a file of another tool.

    JOB may be - for standard input. The job then runs without duetune. The first lines of the file
    list what the other tool cannot do. Secrets are named, never written.
    """
    from duetune.interop.export_jobs.writing import Target, export_job
    from duetune.jobs.spec.load import load_spec, load_text
    from duetune.settings import load_settings

    path = _check_target(output, force=force)
    source = _given_file(file)
    spec = load_text(source) if isinstance(source, str) else load_spec(source)
    exported = export_job(
        spec,
        Target(target),
        gpus=gpus,
        image=image,
        file=output or "FILE",
        folder=source.absolute().parent if isinstance(source, Path) else None,
        home_gpu=load_settings().site.accelerator,
    )
    if path is not None:
        write_whole(path, exported.text, "--output")
    if as_json:
        print_answer(
            ExportDocument(
                command="export",
                file=file,
                output=output,
                target=target,
                text=exported.text,
                launch=exported.launch,
                notes=NoteLine.of(exported.notes),
            )
        )
    elif path is None:
        click.echo(exported.text, nl=False)
    else:
        click.echo(f"Wrote {output}. To launch:")
        for command in exported.launch:
            click.echo(f"  {command}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of a job spec, for editors and other programs."""
    from duetune.jobs.spec.reference import schema_text

    click.echo(schema_text(), nl=False)


def _given_file(file: str) -> Path | str:
    """Return the path, or for ``-`` the text of standard input."""
    if file != STANDARD:
        return Path(file)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidInput("standard input", f"byte {error.start}", "text in UTF-8") from None


def _check_target(output: str | None, *, force: bool) -> Path | None:
    """Check before the conversion that the output file may be written, and return its path."""
    if output is None:
        return None
    path = Path(output)
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput("--output", output, "a file in a folder that exists")
    if path.exists() and not force:
        raise InvalidInput("--output", output, "a file that does not exist yet, or --force")
    return path
