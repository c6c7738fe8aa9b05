"""Spells of the market, up and down: their lengths, and the bits that one slot carries."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
from numpy.typing import NDArray

AGE_HOURS = (0.0, 1.0, 3.0, 6.0, 12.0, 24.0, math.inf)
SURVIVAL_HOURS = (1.0, 3.0, 6.0, 12.0, 24.0)


class Entropy(msgspec.Struct, frozen=True):
    """Bits per slot to tell up from down: without context, from the last slot, from its age.

    Each is the code length of a learner that starts without knowledge (Krichevsky and Trofimov's
    code). More context does not look better by fitting chance, and costs a little if it does not
    help.
    """

    marginal: float
    given_last: float
    given_age: float


class SpellHazard(msgspec.Struct, frozen=True):
    """The ends per hour of spells of an age. ``to_hours`` is None for the oldest."""

    from_hours: float
    to_hours: float | None
    per_hour: float
    exposed_hours: float


class Survived(msgspec.Struct, frozen=True):
    """The share of spells that are longer than ``hours``; None if it was not observed."""

    hours: float
    share: float | None


class Survival(msgspec.Struct, frozen=True):
    """The lengths of spells, from those whose beginning was observed.

    - ``censored``: spells that the end of the trace cut off.
    - ``median_hours``: None if more than half of the spells outlast what was observed.
    - ``age_trend``: the score, in standard deviations, of the logarithm of a spell's age as a
      predictor of its end. Below -2, old spells end less often than young ones; above 2, more
      often; in between, spell age does not predict when a spell ends. None if all spells have one
      age.
    """

    spells: int
    censored: int
    median_hours: float | None
    age_trend: float | None
    survived: tuple[Survived, ...]
    hazard: tuple[SpellHazard, ...]


class SpellStatistics(msgspec.Struct, frozen=True, eq=False):
    """The lengths of spells in slots, and whether the end of each was observed."""

    slots: NDArray[np.int64]
    ended: NDArray[np.bool_]


def spells_of(state: NDArray[np.bool_]) -> SpellStatistics:
    """Return the runs of true slots, except one at the start, whose age is not known."""
    edges = np.diff(np.concatenate(([False], state, [False])).astype(np.int8))
    begins, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
    seen = begins > 0
    return SpellStatistics(slots=(ends - begins)[seen], ended=(ends < state.size)[seen])


def kaplan_meier(spells: SpellStatistics) -> NDArray[np.float64]:
    """Return the share of spells longer than 0, 1, 2, ... slots, up to the longest observed."""
    at_risk, ended = _at_risk(spells)
    hazard = np.divide(ended, at_risk, out=np.zeros(at_risk.size), where=at_risk > 0)
    return np.concatenate(([1.0], np.cumprod(1 - hazard)))


def survival(state: NDArray[np.bool_], slot_hours: float) -> Survival | None:
    """Return the survival of the spells of true slots, or None if none began within the trace."""
    spells = spells_of(state)
    if not spells.slots.size:
        return None
    left = kaplan_meier(spells)
    below = np.flatnonzero(left <= 0.5)
    return Survival(
        spells=int(spells.slots.size),
        censored=int((~spells.ended).sum()),
        median_hours=float(below[0] * slot_hours) if below.size else None,
        age_trend=_age_trend(spells),
        survived=tuple(
            Survived(hours, _left_at(left, hours, slot_hours)) for hours in SURVIVAL_HOURS
        ),
        hazard=_hazards(spells, slot_hours),
    )


def entropy(up: NDArray[np.bool_]) -> Entropy:
    """Return the entropy of the slots after the first, whose past is known."""
    after, last = up[1:].astype(np.int64), up[:-1].astype(np.int64)
    if not after.size:
        return Entropy(0.0, 0.0, 0.0)
    # Ages 1, 2-3, 4-7, ...: one context for each doubling, so that each is seen often.
    age = np.floor(np.log2(_ages(up)[:-1])).astype(np.int64)
    return Entropy(
        marginal=_bits(after, np.zeros_like(last)),
        given_last=_bits(after, last),
        given_age=_bits(after, 2 * age + last),
    )


def _ages(up: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, for each slot, how many slots of the same state there were up to and with it."""
    places = np.arange(up.size)
    begins = np.concatenate(([True], up[1:] != up[:-1]))
    ages: NDArray[np.int64] = places - np.maximum.accumulate(np.where(begins, places, 0)) + 1
    return ages


def _bits(symbols: NDArray[np.int64], context: NDArray[np.int64]) -> float:
    """Return the code length per symbol; order within a context does not matter."""
    total = 0.0
    for value in np.unique(context):
        ones = int(symbols[context == value].sum())
        total += _code_length(ones, int((context == value).sum()) - ones)
    return total / symbols.size


def _code_length(ones: int, zeros: int) -> float:
    """Return the bits of Krichevsky and Trofimov's code for so many ones and zeros."""
    nats = math.log(math.pi) + math.lgamma(ones + zeros + 1)
    return (nats - math.lgamma(ones + 0.5) - math.lgamma(zeros + 0.5)) / math.log(2)


def _at_risk(spells: SpellStatistics) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for ages 1, 2, ... slots, how many spells could end at that age and how many did.

    A spell that the trace cuts off after n slots says nothing about its end at age n.
    """
    longest = int(spells.slots.max(initial=0))
    counts = np.bincount(spells.slots - ~spells.ended, minlength=longest + 1)
    reached: NDArray[np.int64] = counts[::-1].cumsum()[::-1][1 : longest + 1]
    return reached, np.bincount(spells.slots[spells.ended], minlength=longest + 1)[1:]


def _left_at(left: NDArray[np.float64], hours: float, slot_hours: float) -> float | None:
    """Return the share of spells longer than so many hours, or None if it was not observed."""
    slot = int(np.floor(hours / slot_hours + 1e-9))
    if slot < 1:
        return None
    if slot < left.size:
        return float(left[slot])
    return 0.0 if left[-1] == 0 else None


def _hazards(spells: SpellStatistics, slot_hours: float) -> tuple[SpellHazard, ...]:
    """Return the hazard in each range of ages that was observed."""
    at_risk, ended = _at_risk(spells)
    age = np.arange(at_risk.size) * slot_hours
    found: list[SpellHazard] = []
    for low, high in itertools.pairwise(AGE_HOURS):
        inside = (age >= low - 1e-9) & (age < high - 1e-9)
        exposed = float(at_risk[inside].sum() * slot_hours)
        if exposed:
            per_hour = float(ended[inside].sum() / exposed)
            found.append(SpellHazard(low, None if math.isinf(high) else high, per_hour, exposed))
    return tuple(found)


def _age_trend(spells: SpellStatistics) -> float | None:
    """Return the score of a spell's age as a predictor of its end; see ``Survival``."""
    at_risk, ended = _at_risk(spells)
    exposed = int(at_risk.sum())
    if not exposed:
        return None
    rate = ended.sum() / exposed
    age = np.log(np.arange(1, at_risk.size + 1))
    mean = float((at_risk * age).sum() / exposed)
    spread = rate * (1 - rate) * float((at_risk * (age - mean) ** 2).sum())
    if spread <= 1e-12:
        return None
    return float((ended * (age - mean)).sum() / math.sqrt(spread))
