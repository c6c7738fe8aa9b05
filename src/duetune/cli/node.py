"""``duetune node``: runs the work of one node; engines call it, not users."""

from __future__ import annotations

import sys

import click


@click.command(hidden=True)
@click.argument("order")
def node(order: str) -> None:
    """Run the work that a fleet has written to ORDER (a path or URL), on its engine's machine."""
    from duetune.fleets.remote_node import main

    sys.exit(main(order))
