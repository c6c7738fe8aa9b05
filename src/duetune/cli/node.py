"""``duetune node``: runs the work of one node; engines call it, not users."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(hidden=True)
@click.argument("order", type=click.Path(path_type=Path))
def node(order: Path) -> None:
    """Run the work that a fleet has written to the file ORDER, on a machine of its engine."""
    from duetune.fleets.remote_node import main

    sys.exit(main(order))
