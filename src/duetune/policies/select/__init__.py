"""Online policy selection: which policy of a pool to give the next job.

Learners are ``Hedge``, ``AdaHedge`` and ``FixedShare``. ``run_selection`` plays one of them over a
sequence of jobs. The pools are in ``policies.pool``.
"""

from duetune.policies.select.adaptive import AdaHedge, FixedShare
from duetune.policies.select.hedge import Hedge, Learner, Play
from duetune.policies.select.selection_run import (
    RegretSlope,
    SelectionRun,
    cumulative_regret,
    log_log_slope,
    recovery_jobs,
    run_selection,
)
from duetune.policies.select.utility_ranges import (
    UtilityRange,
    job_utility_range,
    normalised,
    utility_range,
)

__all__ = [
    "AdaHedge",
    "FixedShare",
    "Hedge",
    "Learner",
    "Play",
    "RegretSlope",
    "SelectionRun",
    "UtilityRange",
    "cumulative_regret",
    "job_utility_range",
    "log_log_slope",
    "normalised",
    "recovery_jobs",
    "run_selection",
    "utility_range",
]
