"""A quote as it is shown and sent as JSON: plain numbers and words. ``quote`` computes it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetune.core.decision import Outlook


class LineRole(StrEnum):
    """What a line of a quote is about: the chosen policy, or one of two simple alternatives."""

    CHOSEN = "chosen"
    ON_DEMAND_ONLY = "on_demand_only"
    SPOT_ONLY = "spot_only"


class QuoteLine(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all scenarios.

    - ``cost`` is the mean in dollars; 80% of the scenarios lie between ``cost_low`` and
      ``cost_high``. GPUs are paid until the work is done.
    - ``finish_slot`` is the median and ``finish_slot_late`` the 90% quantile; ``finish_at`` and
      ``finish_late_at`` are their moments in market seconds since 1970. None if the job is not
      finished.
    - ``on_time`` and ``finished`` are probabilities; ``gpus`` is the mean number while the job
      runs.
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
    """The best plan if the market were known in advance; means over the scenarios.

    No policy exceeds ``utility`` as long as whole slots are paid, as in the utilities of the pool.
    Swaps between spot and on-demand are free here, and the budget is ignored.
    """

    cost: float
    utility: float


class QuoteDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is expected to cost and when it is expected to finish.

    - ``saving`` is the share of the on-demand-only cost that the chosen policy saves.
    - ``outlook`` is the typical market that the policies were given.
    - ``history_slots`` is how much market history the scenarios rest on.
    - ``soft`` says that the job goes on after its deadline, at the least cost. The scenarios end
      at the hard deadline all the same.
    - ``bound`` is None for long jobs. ``notes`` are remarks for the reader.
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
    soft: bool = False
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> QuoteLine:
        """The line of the chosen policy."""
        return self.line(LineRole.CHOSEN)

    def line(self, role: LineRole) -> QuoteLine:
        """Return the line with this role."""
        return next(line for line in self.lines if line.role == role)
