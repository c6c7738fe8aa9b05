"""``duetune policies`` and ``duetune markets``: lists of the names that options take."""

from __future__ import annotations

import click

from duetune.registry.markets import forecasters_listed, markets_listed
from duetune.registry.plugins import Listed
from duetune.registry.policies import GROUPS, SELECTORS, policies_listed

_FILES = (
    Listed(
        "CSV, Parquet",
        "columns time, spot_usd_gpu_h, on_demand_usd_gpu_h, available; also pool, slot_hours",
    ),
    Listed("spot-traces JSON", "only counts: give --on-demand-price (per GPU-hour)"),
    Listed(
        "AWS price history JSON",
        "only prices, per instance: give --on-demand-price (per GPU-hour) and --available (GPUs)",
    ),
)


@click.command()
def policies() -> None:
    """List the policies, groups of policies and selectors."""
    print_listing("Policies (simulate --policy, tournament --policies)", policies_listed())
    print_listing("Groups (tournament --policies, select --policies)", GROUPS)
    print_listing("Selectors (select --selector)", SELECTORS)


@click.command()
def markets() -> None:
    """List the synthetic markets, trace formats, forecasters and fleets.

    `duetune market feeds` lists the live market feeds.
    """
    from duetune.registry.fleets import fleets_listed

    print_listing("Synthetic markets (--market)", markets_listed())
    print_listing("Files (--trace)", _FILES)
    print_listing("Forecasters (--forecast; forecast in config.toml)", forecasters_listed())
    print_listing("Fleets (site.fleet in config.toml)", fleets_listed())


def print_listing(title: str, listed: tuple[Listed, ...]) -> None:
    """Print a title, then each name with its meaning in two columns."""
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
