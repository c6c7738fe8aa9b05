"""Forecasts on real series: do intervals cover what they say, and does anything beat persistence?

Every slot is forecast from earlier slots alone (rolling origin).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import Progress

from duetune.market.forecast import named_forecasters
from duetune.market.forecast.boosted import BoostedCounts, BoostedPrices, BoostedQuantiles
from duetune.market.forecast.calibration import CalibratedCounts, CalibratedPrices
from duetune.market.forecast.empirical import CountErrors, Last, PriceErrors, Season
from duetune.market.forecast.markov import SemiMarkov
from duetune.market.forecast.statistical import Arima, Ets
from forecast_data import families
from forecast_report import QUESTION, coverage_figure, covered_by_part, details, page, skill_figure
from forecast_scores import CONTROL, OURS, PLAIN, score
from reporting import arguments, finish, publish, save_pictures

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.market.forecast.distribution import SeriesModel
    from forecast_data import Family
    from forecast_scores import Scores

FEW = 3
"""Series of each family on which the slower models are compared."""


def models(family: Family) -> dict[str, Callable[[], SeriesModel]]:
    """Return the models that are measured on every series, the control first."""
    hours = family.slot_hours
    if family.counts:
        return {
            CONTROL: partial(named_forecasters.persistence_counts, hours),
            PLAIN: lambda: CountErrors(Last()),
            OURS: partial(named_forecasters.combined_counts, hours),
        }
    return {
        CONTROL: named_forecasters.persistence_prices,
        PLAIN: lambda: PriceErrors(Last()),
        OURS: partial(named_forecasters.combined_prices, hours),
    }


def slower(family: Family) -> dict[str, Callable[[], SeriesModel]]:
    """Return the models that are measured on a few series, beside the control and ours."""
    day = named_forecasters.slots_per_day(family.slot_hours)
    calibrated = partial(CalibratedCounts, slot_hours=family.slot_hours)
    every = models(family)
    few = {CONTROL: every[CONTROL], OURS: every[OURS]}
    if family.counts:
        return few | {
            "markov": lambda: calibrated(SemiMarkov()),
            "seasonal": lambda: calibrated(CountErrors(Season(day))),
            "arima": lambda: calibrated(CountErrors(Arima())),
            "ets": lambda: calibrated(CountErrors(Ets())),
            "boosted": lambda: calibrated(BoostedCounts(BoostedQuantiles(day))),
        }
    return few | {
        "momentum": named_forecasters.momentum_prices,
        "seasonal": lambda: CalibratedPrices(PriceErrors(Season(day))),
        "arima": lambda: CalibratedPrices(PriceErrors(Arima())),
        "ets": lambda: CalibratedPrices(PriceErrors(Ets())),
        "boosted": lambda: CalibratedPrices(BoostedPrices(BoostedQuantiles(day))),
    }


def main() -> None:
    options = arguments("Forecasts on real series.").parse_args()
    found = families(options.seed, quick=options.quick)
    every: dict[str, dict[str, Scores]] = {}
    few: dict[str, dict[str, Scores]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for family in progress.track(found, description="families"):
            every[family.name] = {
                name: score(family, make) for name, make in models(family).items()
            }
            few[family.name] = {
                name: score(family, make, most=1 if options.quick else FEW)
                for name, make in slower(family).items()
            }
    figures = _figures(found, every, few)
    write = not (options.quick or options.no_write)
    if write:
        scores = {family.name: every[family.name][OURS] for family in found}
        save_pictures(
            {
                "forecast-coverage.png": coverage_figure(found, scores),
                "forecast-skill.png": skill_figure(found, figures["skill"]),
            }
        )
    publish(
        "forecast",
        "Forecasts",
        QUESTION,
        page(found, every, figures),
        write=write,
        details=details(found, few, figures),
    )
    finish(figures)


def _figures(
    found: list[Family], every: dict[str, dict[str, Scores]], few: dict[str, dict[str, Scores]]
) -> dict[str, object]:
    coverage, spans = {}, {}
    skill: dict[str, dict[str, dict[str, float]]] = {"": {}, "plain": {}, "point": {}}
    for family in found:
        scores = every[family.name]
        ours = scores[OURS].mean_pinball()
        hours = [f"{round(ahead * family.slot_hours)} h" for ahead in family.horizons]
        against = {
            "": scores[CONTROL].mean_pinball(),
            "plain": scores[PLAIN].mean_pinball(),
            "point": np.array([each.mean() for each in scores[OURS].point_error]),
        }
        for name, theirs in against.items():
            gained = (1 - ours / theirs).tolist()
            skill[name][family.name] = dict(zip(hours, gained, strict=True))
        coverage[family.name] = float(scores[OURS].coverage().mean())
        fifths = covered_by_part(scores[OURS], 5)
        spans[family.name] = [min(fifths), max(fifths)]
    losses = [-value for family in skill[""].values() for value in family.values()]
    milliseconds = {name: score.milliseconds for name, score in few[found[0].name].items()}
    return {
        "coverage": coverage,
        "coverage_in_fifths": spans,
        "skill": skill[""],
        "worst_loss_to_persistence": max(losses),
        "skill_over_persistence_not_calibrated": skill["plain"],
        "skill_over_last_value_alone": skill["point"],
        "milliseconds": milliseconds,
    }


if __name__ == "__main__":
    main()
