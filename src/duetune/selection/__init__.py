"""Online policy selection: which policy of a pool to give the next job, learnt from all before."""

from duetune.selection.adaptive import AdaHedge, FixedShare
from duetune.selection.hedge import Hedge
from duetune.selection.learner import Learner, Play
from duetune.selection.ranges import UtilityRange, job_utility_range, normalised, utility_range
from duetune.selection.run import (
    RegretSlope,
    SelectionRun,
    cumulative_regret,
    log_log_slope,
    recovery_jobs,
    run_selection,
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
