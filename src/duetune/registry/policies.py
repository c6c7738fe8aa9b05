"""Policies, groups of policies, and the selectors that choose one, by name.

Policies need compiled kernels and optional extras, so each is imported when its name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.ports import Policy
from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.policies.select.hedge import Learner

POLICY_GROUP = "duetune.policies"
"""The entry point group of policies. An entry names a policy or a factory of one."""

POLICIES = (
    Listed("on_demand", "the fewest on-demand GPUs that meet the deadline, held from start to end"),
    Listed(
        "maximal_spot[:thrifty]",
        "all available spot; all GPUs once the deadline requires it; thrifty: only what is needed",
    ),
    Listed(
        "uniform_progress[:gang|:eager]",
        "keeps a uniform pace; gang: a fixed number of one kind; eager: without hysteresis",
    ),
    Listed("ahanp[:SIGMA]", "no forecast: decides by pace and price; spot is cheap up to SIGMA"),
    Listed(
        "ahap[:WINDOW:COMMITMENT:SIGMA:OUTLOOK:PATIENCE][:lavish][:refuse][:virtual]",
        "plans WINDOW slots of forecast, holds the mean of COMMITMENT plans; the end is optional",
    ),
    Listed(
        "rubato[:STEPS]",
        "stochastic dynamic programming over a market model learned from the observed market",
    ),
    Listed("spot_only", "all available spot and nothing else; ignores the deadline"),
    Listed("guarded:POLICY", "any policy, but never late if on-demand GPUs can meet the deadline"),
)
GROUPS = (
    Listed("baselines", "on_demand, maximal_spot, uniform_progress"),
    Listed("paper", "the paper's pool: 105 lavish ahap without outlook and patience, 7 ahanp: 112"),
    Listed("pool", "the paper's, its ahap as we run it, baselines, thrifty spot, rubato: 222"),
)


def policies_named(text: str) -> tuple[Policy, ...]:
    """Return the policies of a comma-separated list of policies and groups, each policy once."""
    policies: dict[str, Policy] = {}
    for name in (part.strip() for part in text.split(",")):
        for policy in _members(name):
            policies.setdefault(policy.name, policy)
    return tuple(policies.values())


def policies_listed() -> tuple[Listed, ...]:
    """Return every policy that can be named, plug-ins included."""
    return KIND.listed()


KIND: Kind[Policy] = Kind(
    "policy",
    POLICY_GROUP,
    POLICIES,
    lambda found: found if isinstance(found, Policy) else None,
    "a policy: name and decide()",
)


def policy_named(name: str, *, also: str = "") -> Policy:
    """Return the policy of that name; ``policy_named(policy.name) == policy`` for built-ins.

    ``also`` is added to the message for an unknown name.
    """
    head, *parts = name.strip().split(":")
    match head:
        case "guarded" if parts:
            from duetune.policies.guard import deadline_guard

            return deadline_guard(policy_named(":".join(parts), also=also))
        case "spot_only" if not parts:
            from duetune.policies.baselines import SpotOnly

            return SpotOnly()
        case "rubato":
            return _rubato(name, parts)
        case "ahap":
            return _ahap(name, parts)
        case "ahanp":
            return _ahanp(name, parts)
        case "on_demand" | "maximal_spot" | "uniform_progress":
            return _baseline(name, head, parts)
        case _:
            return KIND.plugged(name, also=also)


def _members(name: str) -> tuple[Policy, ...]:
    from duetune.policies.guard import deadline_guard
    from duetune.policies.pool import baselines, default_pool, paper_pool

    if name.startswith("guarded:"):
        return tuple(deadline_guard(policy) for policy in _members(name.removeprefix("guarded:")))
    groups: dict[str, Callable[[], tuple[Policy, ...]]] = {
        "baselines": baselines,
        "paper": paper_pool,
        "pool": default_pool,
    }
    also = f"; or a group: {', '.join(each.name for each in GROUPS)}"
    return groups[name]() if name in groups else (policy_named(name, also=also),)


def _rubato(name: str, parts: list[str]) -> Policy:
    from duetune.policies.rubato import Rubato

    match parts:
        case []:
            return Rubato()
        case [steps] if steps.isascii() and steps.isdecimal():
            return Rubato(steps=int(steps))
        case _:
            raise _malformed(name, "rubato")


def _ahap(name: str, parts: list[str]) -> Policy:
    from duetune.policies.ahap import Ahap

    numbers, flags = list(parts), set()
    # A name ends in lavish, refuse, virtual, in this order; each is optional.
    for flag in ("virtual", "refuse", "lavish"):
        if numbers[-1:] == [flag]:
            flags.add(numbers.pop())
    if len(numbers) > 5:
        raise _malformed(name, "ahap")
    usual = Ahap()
    shares = [usual.threshold, usual.outlook, usual.patience]
    shares[: len(numbers[2:])] = [_share(name, text) for text in numbers[2:]]
    threshold, outlook, patience = shares
    return Ahap(
        window=_whole(name, numbers[0]) if numbers else usual.window,
        commitment=_whole(name, numbers[1]) if len(numbers) > 1 else usual.commitment,
        threshold=threshold,
        outlook=outlook,
        patience=patience,
        thrifty="lavish" not in flags,
        refuse_dear_spot="refuse" in flags,
        virtual="virtual" in flags,
    )


def _ahanp(name: str, parts: list[str]) -> Policy:
    from duetune.policies.ahanp import Ahanp

    match parts:
        case []:
            return Ahanp()
        case [threshold]:
            return Ahanp(threshold=_share(name, threshold))
        case _:
            raise _malformed(name, "ahanp")


def _baseline(name: str, head: str, parts: list[str]) -> Policy:
    from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress

    known: dict[str, Policy] = {
        "on_demand": OnDemandOnly(),
        "maximal_spot": MaximalSpot(),
        "maximal_spot:thrifty": MaximalSpot(thrifty=True),
        "uniform_progress": UniformProgress(),
        "uniform_progress:gang": UniformProgress(gang=True),
        "uniform_progress:eager": UniformProgress(hysteresis=False),
    }
    if (policy := known.get(":".join((head, *parts)))) is None:
        raise _malformed(name, head)
    return policy


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise _malformed(name, "ahap")
    return int(text)


def _share(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _malformed(name, name.strip().split(":", maxsplit=1)[0]) from None


def _malformed(name: str, head: str) -> InvalidInput:
    """Return the error for a name that does not have the form of policy ``head``."""
    form = next(listed.name for listed in POLICIES if listed.name.startswith(head))
    words = "WINDOW and COMMITMENT whole numbers; numbers at the end are optional"
    return InvalidInput("policy", name, form if head != "ahap" else f"{form}, {words}")


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
