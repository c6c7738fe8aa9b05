"""Selectors by name: the learners that choose a policy of the pool for each job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.registry.plugins import Listed

if TYPE_CHECKING:
    from duetune.policies.select.hedge import Learner

SELECTORS = (
    Listed("hedge", "exponential weights, rate from the number of jobs and ex-ante ranges"),
    Listed("adahedge", "exponential weights with an adaptive rate, in dollars"),
    Listed("fixed_share[:MEMORY]", "follows a best policy that changes over time; MEMORY in jobs"),
)


def selector_named(name: str, arms: int, *, jobs: int) -> Learner:
    """Return a learner over ``arms`` policies for a sequence of ``jobs`` jobs."""
    from duetune.policies.select import AdaHedge, FixedShare, Hedge

    match name.strip().split(":"):
        case ["hedge"]:
            return Hedge(arms, jobs=jobs)
        case ["adahedge"]:
            return AdaHedge(arms)
        case ["fixed_share"]:
            return FixedShare(arms)
        case ["fixed_share", memory] if memory.isdecimal():
            return FixedShare(arms, memory=int(memory))
        case _:
            raise InvalidInput(
                "selector", name, f"one of {', '.join(each.name for each in SELECTORS)}"
            )
