"""Coverage of intervals on runs of another day: whole campaigns are held out, not rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from knowledge_data import table
from knowledge_errors import Coverage
from knowledge_scoring import one_group_out
from knowledge_trials import by_subject, run_trial, trials

if TYPE_CHECKING:
    from knowledge_trials import Population, Workers


def campaign_coverages(population: Population, workers: Workers) -> list[Coverage]:
    """Return coverage of pace and memory where whole campaigns are held out, as on another day.

    Rows about which something was never measured elsewhere are told apart; they are flagged. There
    is nothing to hold out in a table of one campaign.
    """
    name, label, subject = population.table, population.label, population.subject
    splits = one_group_out(population.rows, table(name).campaign.astype(np.str_))
    splits = [split for split in splits if len(split.train) and len(split.test)]
    if len(splits) < 2:
        return []
    answers = workers.map(run_trial, trials((subject,), name, splits), f"campaigns, {label}")
    said = by_subject(answers)[subject]
    flagged = np.concatenate([each.flagged for each in said])
    found = []
    for quantity, intervals, truths in (
        ("pace", [each.tokens_per_s for each in said], [each.measured for each in said]),
        ("memory", [each.memory_gb for each in said], [each.used_gb for each in said]),
    ):
        interval, truth = np.concatenate(intervals), np.concatenate(truths)
        inside = (truth >= interval[:, 0]) & (truth <= interval[:, 2])
        half = np.sqrt(interval[:, 2] / interval[:, 0]) - 1.0
        for words, kind in (("", ~flagged), (", extrapolated", flagged)):
            mine = kind & np.isfinite(truth)
            if mine.any():
                found.append(
                    Coverage(
                        table=label,
                        group=f"another campaign: {quantity}{words}",
                        covered=float(inside[mine].mean()),
                        half_width=float(np.median(half[mine])),
                        answers=int(mine.sum()),
                        rows=int(mine.sum()),
                    )
                )
    return found
