"""A quote as it is shown and sent: plain numbers and words."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetune.core.decision import Outlook


class LineRole(StrEnum):
    """What a line of a quote is about: our choice, and what one would do without us."""

    CHOSEN = "chosen"
    ON_DEMAND_ONLY = "on_demand_only"
    SPOT_ONLY = "spot_only"


class QuoteLine(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job, over all scenarios.

    ``cost`` is the mean, ``cost_low`` to ``cost_high`` what 80% of the scenarios lie between; GPUs
    are paid until the work is done. ``finish_slot`` is the median and ``finish_slot_late`` what it
    is not later than in 90%, beside their moments (market seconds since the epoch); None where the
    job is not finished by then.
    ``on_time`` and ``finished`` are probabilities; ``gpus`` the mean number while it runs.
    """

    role: LineRole
    policy: str
    cost: float
    cost_low: float
    cost_high: float
    finish_slot: int | None
    finish_slot_late: int | None
    finish_at: float | None
    finish_late_at: float | None
    on_time: float
    finished: float
    gpus: float
    spot_share: float
    utility: float


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Had the market been known: what the best plan would cost, and the utility that no policy
    exceeds as long as whole slots are paid (as in the utilities of the pool); means over the
    scenarios. Swaps of spot and on-demand are free here and a budget does not bind.
    """

    cost: float
    utility: float


class QuoteDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a job will cost and when it will be done, as far as that can be known before.

    ``saving`` is the share of the cost on demand only that the chosen policy saves. ``outlook`` is
    what the policies were told to be typical. ``history_slots`` is how much of the market's past
    the scenarios rest on. ``bound`` is None for long jobs. ``notes`` is what the reader should know
    besides.
    """

    at: float
    origin: float
    slot_s: float
    work: float
    value: float
    budget: float | None
    deadline_slot: int
    deadline_at: float
    hard_deadline_slot: int
    hard_deadline_at: float
    scenarios: int
    history_slots: int
    outlook: Outlook
    bound: Bound | None
    lines: tuple[QuoteLine, ...] = ()
    saving: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> QuoteLine:
        return self.line(LineRole.CHOSEN)

    def line(self, role: LineRole) -> QuoteLine:
        return next(line for line in self.lines if line.role == role)
