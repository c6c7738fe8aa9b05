"""``duetune cluster``: many jobs on one stock of GPUs."""

from __future__ import annotations

import click

from duetune.cli.catalogue import print_listing
from duetune.cli.cluster_compare import compare
from duetune.cli.cluster_simulate import simulate


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder)
def cluster() -> None:
    """Many jobs on one stock of GPUs: planners, sources of knowledge, and what they are worth.

    \b
    duetune cluster simulate --planner sia --source hybrid --plot day.png
    duetune cluster compare --planners fifo,sia --sources random,hybrid --load 12,24,60
    duetune cluster planners
    """


cluster.add_command(simulate)
cluster.add_command(compare)


@cluster.command()
def planners() -> None:
    """The planners by name, and the sources of knowledge that any of them takes."""
    from duetune.registry.planners import planners_listed
    from duetune.registry.sources import sources_listed

    print_listing("Planners (simulate --planner, compare --planners)", planners_listed())
    print_listing("Sources (simulate --source, compare --sources)", sources_listed())
