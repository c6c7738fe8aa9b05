"""``duetune merge``: write a job's base model with its adapter merged in."""

from __future__ import annotations

from pathlib import Path

import click

from duetune.home import Home


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    help="Write the model to this folder.  [default: merged, beside the result]",
)
def merge(job: str, output: str | None) -> None:
    """Merge the adapter of a finished job into its base model.

    The folder can be loaded without PEFT. The adapter stays as it is. An adapter of qlora is merged
    into the weights before they were quantised.
    """
    from duetune.errors import InvalidInput, MissingExtra
    from duetune.training.task import read_task

    home = Home()
    row = home.store.job(job)
    folder = home.settings.folder(row.id)
    if not row.output:
        raise InvalidInput("job", row.id, "a finished job; this one has no result yet")
    try:
        from duetune.training.merged_weights import merge_adapter
    except ModuleNotFoundError:
        raise MissingExtra("merging an adapter", "train") from None
    target = folder / "merged" if output is None else Path(output).absolute()
    merge_adapter(read_task(folder), Path(row.output), target)
    click.echo(f"Wrote {target}")
