"""What is odd in the tables, counted anew in every run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.model.quality import implied_mfu
from duetune.knowledge.observation import RunOutcome
from knowledge_data import groups, table, valid_rows

if TYPE_CHECKING:
    from duetune.knowledge.history import History

FREE_OF_DTYPE = (
    *("model", "method", "gpu_model", "num_nodes", "num_gpus", "tokens_per_sample", "batch_size"),
)


def anomalies(*, public: bool, own: bool) -> list[str]:
    lines = []
    if public:
        lines += _ibm(table("ibm"))
        lines += _sample(table("sample"))
    if own:
        lines += _own(table("own"))
    return lines


def _ibm(history: History) -> list[str]:
    mfu = implied_mfu(history.configurations, history.tokens_per_s)
    odd = {each.observation.key for each in history.quarantined}
    kinds: dict[str, int] = {}
    for each in history:
        if each.key in odd:
            it = each.configuration
            kind = f"{it.model} {it.method} {it.precision} on {it.gpu_model}"
            kinds[kind] = kinds.get(kind, 0) + 1
    told = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
    return [
        (
            f"`ibm_sft_throughput.csv`: {len(odd)} of {len(history)} rows imply more than 85% of "
            f"the GPU's peak, {int(np.sum(mfu > 1))} more than 100% ({told})."
        ),
        *_twins(history),
        *_falling(history),
    ]


def _twins(history: History) -> list[str]:
    """The same but for the precision."""
    group = groups(history, *FREE_OF_DTYPE)
    ratios = []
    for name in np.unique(group):
        rows = np.flatnonzero(group == name)
        paces = history.tokens_per_s[rows]
        if len(rows) > 1 and np.isfinite(paces).all():
            ratios.append(float(paces.max() / paces.min()))
    if not ratios:
        return []
    return [
        (
            f"{len(ratios)} configurations were measured in bfloat16 and in float16: one is up to "
            f"{max(ratios):.1f} times as fast as the other (median {np.median(ratios):.2f}), on "
            "GPUs where both have the same peak. A predictor that does not see the precision "
            "cannot be right on them."
        )
    ]


def _falling(history: History) -> list[str]:
    """Throughput that falls by a fifth or more while the batch doubles and all else is the same."""
    group = groups(
        history,
        "model",
        "method",
        "gpu_model",
        "num_gpus",
        "tokens_per_sample",
        "precision",
        "software",
    )
    batch = history.configurations.number("batch_size")
    rows = valid_rows(history)
    falls, pairs = [], 0
    for name in np.unique(group[rows]):
        mine = rows[group[rows] == name]
        mine = mine[np.argsort(batch[mine])]
        for one, two in itertools.pairwise(mine):
            if batch[two] > batch[one]:
                pairs += 1
                change = history.tokens_per_s[two] / history.tokens_per_s[one]
                if change < 0.8:
                    falls.append(float(change))
    if not falls:
        return []
    return [
        (
            f"In {len(falls)} of {pairs} pairs of neighbouring batch sizes a larger batch is "
            f"slower by a fifth or more, down to {min(falls):.2f} times: memory near its limit, or "
            "another load."
        )
    ]


def _sample(history: History) -> list[str]:
    passing = broken(history.configurations) < 0
    rejected = history.outcome == RunOutcome.REJECTED
    group = groups(
        history, "model", "method", "gpu_model", "num_gpus", "tokens_per_sample", "batch_size"
    )
    valid = history.outcome == RunOutcome.VALID
    conflicts = [name for name in np.unique(group) if len(np.unique(valid[group == name])) > 1]
    return [
        (
            f"`llmfinetuningbench_sample.csv`: {int((~passing).sum())} of {len(history)} rows "
            f"break a rule, {int(rejected.sum())} of them are labelled rejected; "
            f"{len(conflicts)} of AutoConf's six-field configurations are both valid and invalid, "
            "by settings that those six fields do not show."
        ),
    ]


def _own(history: History) -> list[str]:
    odd = len(history.quarantined)
    failed = int(np.sum(history.outcome == RunOutcome.FAILED))
    return [
        (
            f"Our own table: {len(history)} rows, {odd} of them implausible, {failed} failed for "
            "another reason than memory."
        ),
        *_falling(history),
    ]
