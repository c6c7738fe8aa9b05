"""Policies by name.

A name is cheap, what it stands for is not (compiled kernels, optional extras), so everything is
imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.ports import Policy

POLICY_GROUP = "duetune.policies"
"""The entry point group in which others register policies: a name for a policy or its factory."""

POLICIES = (
    Listed("on_demand", "the fewest on-demand GPUs that meet the deadline, from start to end"),
    Listed(
        "maximal_spot[:thrifty]",
        "all the spot there is, until the deadline forces the maximum; thrifty: not beyond need",
    ),
    Listed(
        "uniform_progress[:gang|:eager]",
        "keep to the pace; gang: a fixed number of one kind; eager: without hysteresis",
    ),
    Listed("ahanp[:SIGMA]", "no forecast: by pace and price; spot is cheap up to SIGMA"),
    Listed(
        "ahap[:WINDOW:COMMITMENT:SIGMA:OUTLOOK:PATIENCE][:lavish][:refuse][:virtual]",
        "plan WINDOW slots of forecast, hold the mean of COMMITMENT plans; ends may be left out",
    ),
    Listed(
        "rubato[:STEPS]",
        "plan against every market that may follow, as likely as what was seen makes it",
    ),
    Listed("spot_only", "all the spot there is and nothing else, whatever the deadline"),
    Listed("guarded:POLICY", "any of them, but never late where on-demand could be on time"),
)
GROUPS = (
    Listed("baselines", "on_demand, maximal_spot, uniform_progress"),
    Listed("paper", "the paper's pool: 105 lavish ahap without outlook and patience, 7 ahanp: 112"),
    Listed("pool", "the paper's, its ahap as we run it, baselines, thrifty spot, rubato: 222"),
)


def policy_named(name: str) -> Policy:
    """The policy of that name; ``policy_named(policy.name) == policy`` for every built-in one."""
    return _policy(name, also="")


def policies_named(text: str) -> tuple[Policy, ...]:
    """Policies and groups, separated by commas; each policy once, in the order given."""
    policies: dict[str, Policy] = {}
    for name in (part.strip() for part in text.split(",")):
        for policy in _members(name):
            policies.setdefault(policy.name, policy)
    return tuple(policies.values())


def policies_listed() -> tuple[Listed, ...]:
    """Return every policy that can be named, those registered by others included."""
    return KIND.listed()


def _checked(found: object) -> Policy | None:
    from duetune.core.ports import Policy

    return found if isinstance(found, Policy) else None


KIND: Kind[Policy] = Kind("policy", POLICY_GROUP, POLICIES, _checked, "a policy: name and decide()")


def _policy(name: str, *, also: str) -> Policy:
    """``also`` is what the message for an unknown name adds to what is allowed."""
    head, *parts = name.strip().split(":")
    match head:
        case "guarded" if parts:
            from duetune.policies.guard import deadline_guard

            return deadline_guard(_policy(":".join(parts), also=also))
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
    return groups[name]() if name in groups else (_policy(name, also=also),)


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

    numbers = list(parts)
    # The order of the name: lavish, refuse, virtual, all after the numbers.
    virtual = numbers[-1:] == ["virtual"]
    numbers = numbers[:-1] if virtual else numbers
    refuse = numbers[-1:] == ["refuse"]
    numbers = numbers[:-1] if refuse else numbers
    lavish = numbers[-1:] == ["lavish"]
    numbers = numbers[:-1] if lavish else numbers
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
        thrifty=not lavish,
        refuse_dear_spot=refuse,
        virtual=virtual,
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

    match head, parts:
        case "on_demand", []:
            return OnDemandOnly()
        case "maximal_spot", []:
            return MaximalSpot()
        case "maximal_spot", ["thrifty"]:
            return MaximalSpot(thrifty=True)
        case "uniform_progress", []:
            return UniformProgress()
        case "uniform_progress", ["gang"]:
            return UniformProgress(gang=True)
        case "uniform_progress", ["eager"]:
            return UniformProgress(hysteresis=False)
        case _:
            raise _malformed(name, head)


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
    form = next(listed.name for listed in POLICIES if listed.name.startswith(head))
    words = "WINDOW and COMMITMENT whole numbers; numbers at the end may be left out"
    return InvalidInput("policy", name, form if head != "ahap" else f"{form}, {words}")
