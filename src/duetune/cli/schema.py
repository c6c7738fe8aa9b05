"""``duetune schema``."""

from __future__ import annotations

import click


@click.command()
def schema() -> None:
    """The JSON Schema of a job spec, for editors and other programs."""
    from duetune.jobs.spec.reference import schema_text

    click.echo(schema_text(), nl=False)
