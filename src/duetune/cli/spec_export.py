"""``duetune export``."""

from __future__ import annotations

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

TARGETS = ("skypilot", "trainjob", "rayjob", "sbatch")


class ExportDocument(FileDocument, frozen=True, kw_only=True):
    """``text`` is the file for the other tool; ``launch`` the commands that start it."""

    target: str
    text: str
    launch: tuple[str, ...]


@click.command()
@click.argument("file", metavar="JOB")
@click.option(
    "--to",
    "target",
    type=click.Choice(TARGETS),
    required=True,
    help="A SkyPilot task, a TrainJob of Kubeflow, a RayJob of KubeRay, or a script for Slurm.",
)
@click.option("--gpus", type=int, metavar="N", help="How many GPUs, within the spec's range.")
@click.option(
    "--image", metavar="NAME", help="A container image with duetune; trainjob and rayjob only."
)
@output_options
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
    """A job spec as a file of another tool; - is standard input.

    What the other tool cannot do is listed in the first lines. Secrets are named, never written.
    """
    from duetune.interop.export_jobs.writing import Target, export_job
    from duetune.jobs.spec.load import load_spec, load_text

    path = check_target(output, force=force)
    source = given_file(file)
    spec = load_text(source) if isinstance(source, str) else load_spec(source)
    exported = export_job(spec, Target(target), gpus=gpus, image=image, file=output or "FILE")
    if path is not None:
        write_whole(path, exported.text, "--output")
    if as_json:
        print_json(
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
