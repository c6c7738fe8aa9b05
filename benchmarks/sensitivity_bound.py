"""The guarantee of a plan made on forecasts: its loss, beside the largest possible loss.

A plan for the whole job holds its totals and splits them by what is really there. It earns at least
the optimum less twice E, the sum over slots of N_max |price error| + on-demand price x |count
error|. The second, tighter bound counts only GPUs that can be there and the saving they can bring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketWindow
from duetune.core.physics import job_physics, play
from duetune.market.forecast.noisy_oracle import ErrorRegime, noisy_forecasts
from duetune.policies.solve.dynamic import offline_optimum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.core.job import Job
    from duetune.core.market import MarketTrace
    from duetune.simulate.cases import Case

BOUND_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
ROUNDING = 1e-6


class BoundPoint(msgspec.Struct, frozen=True):
    """Means over the cases of one regime and level, in dollars per job."""

    markets: str
    regime: str
    level: float
    cases: int
    loss: float
    worst_loss: float
    bound: float
    tight_bound: float
    violated: int


def bound_points(
    label: str,
    cases: Sequence[Case],
    markets: Sequence[MarketTrace],
    levels: Sequence[float],
    seed: int,
    advance: Callable[[], None],
) -> list[BoundPoint]:
    """Return losses and bounds of every regime and level."""
    best = [
        offline_optimum(case.job, markets[case.market].window(case.start, case.job.hard_deadline))
        for case in cases
    ]
    points = []
    for regime in ErrorRegime:
        for level in levels:
            rows = []
            for case, optimum in zip(cases, best, strict=True):
                truth = markets[case.market].window(case.start, case.job.hard_deadline)
                belief = believed(case, markets[case.market], regime, level, seed)
                planned = offline_optimum(case.job, belief)
                earned = settled(case.job, [held.total for held in planned.plan], truth)
                # A plan on a grid that is not exact may be off by its own certified gap.
                slack = planned.gap + optimum.gap + ROUNDING
                rows.append(
                    (
                        optimum.utility - earned,
                        2 * error_between(case.job, truth, belief),
                        2 * tight_error(case.job, truth, belief),
                        slack,
                    )
                )
            loss, bound, tight, slack = np.array(rows).T
            points.append(
                BoundPoint(
                    markets=label,
                    regime=regime.value,
                    level=level,
                    cases=len(cases),
                    loss=float(loss.mean()),
                    worst_loss=float(loss.max()),
                    bound=float(bound.mean()),
                    tight_bound=float(tight.mean()),
                    violated=int(((loss > bound + slack) | (loss > tight + slack)).sum()),
                )
            )
            advance()
    return points


def believed(
    case: Case, trace: MarketTrace, regime: ErrorRegime, level: float, seed: int
) -> MarketWindow:
    """Return the whole window as forecast in the slot before the job begins."""
    truth = trace.window(case.start, case.job.hard_deadline)
    price, available = noisy_forecasts(
        trace,
        np.array([case.start - 1]),
        case.job.hard_deadline,
        regime=regime,
        level=level,
        seed=seed,
    )
    return MarketWindow(price[0], available[0], truth.on_demand_price)


def settled(job: Job, totals: Sequence[int], market: MarketWindow) -> float:
    """Return the utility of these totals, with spot as far as it is there and cheaper."""
    planned = np.zeros(job.hard_deadline, dtype=np.int64)
    planned[: len(totals)] = totals
    cheaper = market.spot_price < market.on_demand_price
    spot = np.where(cheaper, np.minimum(planned, market.available), 0)
    return float(play(job_physics(job), market, spot, planned - spot)[0])


def error_between(job: Job, truth: MarketWindow, belief: MarketWindow) -> float:
    """Return E of the guarantee."""
    price = np.abs(truth.spot_price - belief.spot_price)
    count = np.abs(truth.available - belief.available)
    return float((job.max_gpus * price + truth.on_demand_price * count).sum())


def tight_error(job: Job, truth: MarketWindow, belief: MarketWindow) -> float:
    """Return E with only GPUs that the job could hold, at the saving believed in."""

    def usable(market: MarketWindow) -> NDArray[np.int64]:
        return np.minimum(market.available, job.max_gpus)

    price = usable(truth) * np.abs(truth.spot_price - belief.spot_price)
    saving = np.maximum(truth.on_demand_price - belief.spot_price, 0.0)
    return float((price + saving * np.abs(usable(truth) - usable(belief))).sum())
