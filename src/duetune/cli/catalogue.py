"""``duetune policies`` and ``duetune markets``."""

from __future__ import annotations

import click

from duetune import bootstrap

_FILES = (
    bootstrap.Listed(
        "CSV, Parquet",
        "columns time, spot_usd_gpu_h, on_demand_usd_gpu_h, available; also pool, slot_hours",
    ),
    bootstrap.Listed("spot-traces JSON", "availability alone: give --on-demand-price"),
    bootstrap.Listed(
        "AWS price history JSON", "prices alone: give --on-demand-price and --available"
    ),
)


@click.command()
def policies() -> None:
    """The policies, groups of policies and selectors by name."""
    print_listing(
        "Policies (simulate --policy, tournament --policies)", bootstrap.policies_listed()
    )
    print_listing("Groups (tournament --policies, select --policies)", bootstrap.GROUPS)
    print_listing("Selectors (select --selector)", bootstrap.SELECTORS)


@click.command()
def markets() -> None:
    """The synthetic markets by name, and what files can be read."""
    print_listing("Synthetic markets (--market)", bootstrap.markets_listed())
    print_listing("Files (--trace)", _FILES)


def print_listing(title: str, listed: tuple[bootstrap.Listed, ...]) -> None:
    click.echo(f"{title}:")
    short = [len(each.name) for each in listed if len(each.name) <= 30]
    width = max(short, default=0)
    for each in listed:
        if len(each.name) > width:
            click.echo(f"  {each.name}")
            click.echo(f"  {'':{width}}  {each.meaning}")
        else:
            click.echo(f"  {each.name:{width}}  {each.meaning}")
    click.echo()
