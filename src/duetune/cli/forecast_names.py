"""Which forecasters there are, for those who ask and for those who do not."""

from __future__ import annotations

import click

from duetune.errors import DuetuneError

LIKED = ("combined", "markov")


class NamingForecasters(click.Command):
    """A command whose help says which forecasters there are, as they themselves say it."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from duetune.market.forecast.forecast_source import ALLOWED
        from duetune.registry.forecasters import FORECASTERS, forecasters_listed

        others = ", ".join(each.name for each in forecasters_listed()[len(FORECASTERS) :])
        registered = f" Registered by others: {others}." if others else ""
        with formatter.section("Forecasters"):
            formatter.write_text(f"{ALLOWED}. perfect and noisy know the future.{registered}")


def usual_forecaster() -> str:
    """The one to ask if nobody was named."""
    return next((name for name in LIKED if _known(name)), "last")


def usual_forecasters(slot_hours: float) -> str:
    """Persistence, the same time yesterday, and those that learn and need no extra part."""
    day = max(1, round(24 / slot_hours))
    return ",".join(["last", f"seasonal:{day}", *(name for name in LIKED if _known(name))])


def _known(name: str) -> bool:
    from duetune.market.forecast.forecast_source import ForecastSource

    try:
        ForecastSource.parse(name)
    except DuetuneError:
        return False
    return True
