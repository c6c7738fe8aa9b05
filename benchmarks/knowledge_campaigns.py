"""Intervals and verdicts on runs of another day, and on runs of other people.

Whole campaigns are held out, not rows: runs of one day err together. The public tables are judged
by a model that saw none of them: other GPUs, other software, and models split over GPUs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration_table import Described
from knowledge_baselines import OURS
from knowledge_data import table, tried_rows
from knowledge_errors import Coverage
from knowledge_scoring import one_group_out
from knowledge_trials import Part, Said, Trial, run_trial, trials

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from knowledge_trials import Population, Workers

    Mask = NDArray[np.bool_]

PACKED, PADDED = "this trainer, packed rows", "older steps, padded rows"
ALL = "all of them"
NEVER = 0.02
"""A configuration with a smaller probability is said not to fit at all."""


class CampaignLine(msgspec.Struct, frozen=True):
    """Some rows that were held out: how many, the shares inside their 90% intervals, the median
    half-widths, the share of wrong verdicts, and how many rows are flagged as never measured.

    ``refused`` are the rows that ran although they were said not to fit at all.
    """

    kind: str
    campaign: str
    rows: int
    ran: int
    pace: float
    pace_width: float
    memory: float
    memory_width: float
    wrong: float
    flagged: int
    refused: int


def campaign_lines(population: Population, workers: Workers) -> list[CampaignLine]:
    """Return a line for each campaign that is held out whole, and one for all of a kind.

    There is nothing to hold out in a table of one campaign.
    """
    history = table(population.table)
    campaign = np.array([each.campaign for each in history], np.str_)
    splits = one_group_out(population.tried, campaign)
    if len(splits) < 2:
        return []
    answers = workers.map(
        run_trial, trials((OURS,), population.table, splits), f"campaigns, {population.label}"
    )
    said = [each[OURS] for each in answers]
    packed = [history.take(split.test).configurations.packed for split in splits]
    lines = []
    for kind, wanted in ((PACKED, True), (PADDED, False)):
        mine = [number for number, each in enumerate(packed) if bool(each.all()) is wanted]
        found = [_line(kind, _named(splits[number].name), [said[number]]) for number in mine]
        if found:
            lines += [*found, _line(kind, ALL, [said[number] for number in mine])]
    return lines


def coverage_of(lines: list[CampaignLine]) -> list[Coverage]:
    """Return the coverage of pace and memory in the campaigns of this trainer, for the figure."""
    return [
        Coverage(
            table=quantity,
            group="total" if each.campaign == ALL else each.campaign,
            covered=getattr(each, quantity),
            half_width=getattr(each, f"{quantity}_width"),
            answers=each.ran,
            rows=each.ran,
        )
        for quantity in ("pace", "memory")
        for each in lines
        if each.kind == PACKED
        if np.isfinite(getattr(each, quantity))
    ]


def elsewhere_lines(tables: tuple[str, ...], workers: Workers) -> list[CampaignLine]:
    """Return what a model of our own table says of public ones, split by whether the model is
    sharded.
    """
    learnt = Part("own", tried_rows(table("own")))
    asked, kinds = [], []
    for name in tables:
        history = table(name)
        rows = tried_rows(history)
        sharded = Described(history.configurations).fsdp[rows]
        for words, mine in (("one GPU or copies", ~sharded), ("sharded", sharded)):
            if mine.any():
                asked.append(Trial((OURS,), (learnt,), Part(name, rows[mine])))
                kinds.append((name, words))
    answers = workers.map(run_trial, asked, "public tables by our own")
    return [
        _line(f"public table {name}", words, [each[OURS]])
        for (name, words), each in zip(kinds, answers, strict=True)
    ]


def _named(campaign: str) -> str:
    """Return the part of a campaign's name that tells it from the others."""
    seed = re.search(r"profile (\w+) \((.*)\)", campaign)
    return f"{seed[1]}, {seed[2]}" if seed else campaign.split(" ")[-2]


def _line(kind: str, campaign: str, said: list[Said]) -> CampaignLine:
    valid = np.concatenate([each.valid for each in said])
    likely = np.concatenate([each.likely for each in said])
    pace = _covered(
        np.concatenate([each.tokens_per_s for each in said]),
        np.concatenate([each.measured for each in said]),
        valid,
    )
    memory = _covered(
        np.concatenate([each.memory_gb for each in said]),
        np.concatenate([each.used_gb for each in said]),
        valid,
    )
    return CampaignLine(
        kind,
        campaign,
        len(valid),
        int(valid.sum()),
        *pace,
        *memory,
        float(np.mean((likely >= 0.5) != valid)),
        int(np.concatenate([each.flagged for each in said]).sum()),
        int(np.count_nonzero(valid & (likely < NEVER))),
    )


def _covered(
    interval: NDArray[np.float64], truth: NDArray[np.float64], valid: Mask
) -> tuple[float, float]:
    """Return the share inside the interval and the median half-width; NaN if nothing is known."""
    known = valid & np.isfinite(truth)
    if not known.any():
        return float("nan"), float("nan")
    inside = (truth >= interval[:, 0]) & (truth <= interval[:, 2])
    half = np.sqrt(interval[:, 2] / interval[:, 0]) - 1.0
    return float(inside[known].mean()), float(np.median(half[known]))
