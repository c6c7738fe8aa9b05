"""The state of a job: the result of all its events, and the market as the job has seen it.

How events change the state is in ``effects``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Forecast, Seen
from duetune.core.events import Ended, GivenUp, Status, Submitted
from duetune.core.fleet import Node, NodeEnd, NodeKind, NodeState
from duetune.core.job import MAX_SLOTS, Job
from duetune.core.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.core.events import Observed
    from duetune.core.market import Slot


class Ending(msgspec.Struct, frozen=True):
    """The final status and reason of a job that is stopping."""

    status: Status
    reason: str


class Watched(msgspec.Struct):
    """The market as a job observed it, with one entry per slot, counted from 1.

    A slot without an observation repeats the slot before it. Slots before the first observation, in
    slot ``first``, repeat that one. A later observation of the same slot replaces the earlier one.
    No job has more than ``MAX_SLOTS`` slots, so a clock that jumps cannot fill the memory.
    """

    prices: list[float] = msgspec.field(default_factory=list)
    counts: list[int] = msgspec.field(default_factory=list)
    first: int = 0

    def look(self, slot: int, market: Slot) -> None:
        """Add the market of ``slot``; called with every observation when it takes effect."""
        slot = min(slot, MAX_SLOTS)
        if not slot > self.first > 0:
            self.first = slot
            self.prices[:slot] = [market.spot_price] * slot
            self.counts[:slot] = [market.available] * slot
            return
        missed = slot - 1 - len(self.prices)
        self.prices += self.prices[-1:] * missed
        self.counts += self.counts[-1:] * missed
        self.prices[slot - 1 : slot] = [market.spot_price]
        self.counts[slot - 1 : slot] = [market.available]


class JobState(msgspec.Struct):
    """The state of a job after ``position`` events.

    Terms and status:

    - ``submitted``: the first event; ``job`` has the terms as amended and measured since.
    - ``reason``: why the job has its status, or why it holds what it holds.
    - ``ending``: set while the job is stopping and after it.
    - ``amended_deadline``: the last deadline that a user asked for after the submission;
      ``amended_value`` is the last value, ``amended_priority`` the last priority.
    - ``target``: the slot by which a job with a soft deadline should finish now that its deadline
      is lost; None while the deadline can be met.
    - ``user_requests``: the numbers of the user requests that took effect.
    - ``updated_at``: moment of the latest event.
    - ``ended``: the job's last event but one; ``learned_at`` is when the selector learned from it.

    The present slot and its decision:

    - ``slot``: the last slot that was observed; ``slot_began`` is its first moment.
    - ``due``: the slot must be decided again, because the terms have changed.
    - ``wanted``: the allocation that was decided.
    - ``memo``: the policy's memory, made for at most ``memo_gpus`` GPUs.
    - ``share``: the most GPUs that the queue lets the job hold; None means no limit.
    - ``wish``: the GPUs that the job would hold if it were alone.
    - ``waited``: the share was too small to run at some time of the slot.
    - ``refused_in``: the last slot in which the fleet refused a spot node.
    - ``watched``: the market as it was observed.
    - ``given_up``: set if the policy has given the job up.
    - ``probe_since``: the slot in which GPUs began to be held only to measure the pace, at
      ``probe_from`` steps; 0 if they are not.

    Nodes:

    - ``nodes``: every node that the job ever had, by id; ``epochs`` has their epochs.
    - ``confirmed``: ids of nodes that the fleet has reported.
    - ``releasing``: ids of nodes that the fleet was or will be told to release.
    - ``silent_since``: since when the fleet does not answer; None if it does.

    Training:

    - ``progress``: the latest report, made at ``progress_at``.
    - ``progress_at_slot``: work done before the present slot.
    - ``stepped_at``: when the number of steps last grew.
    - ``steady_at``: since when the same nodes have trained and nothing was measured, with
      ``steady_step`` steps done; None if they have not done a step yet.
    - ``loss``: the last loss that was reported.
    - ``pace``: measured steps per slot, by number of GPUs.
    - ``stalled_slots``: consecutive slots with GPUs and without progress.
    - ``lost_steps``: steps that had to be repeated.
    """

    stream: str
    submitted: Submitted
    job: Job
    position: int = 1
    status: Status = Status.QUEUED
    reason: str = ""
    ending: Ending | None = None
    slot: int = 0
    slot_began: float = -math.inf
    due: bool = True
    amended_deadline: float | None = None
    amended_value: float | None = None
    amended_priority: int | None = None
    target: int | None = None
    given_up: GivenUp | None = None
    probe_since: int = 0
    probe_from: float = 0.0
    wanted: Allocation = Allocation()
    memo: tuple[float, ...] = ()
    memo_gpus: int = 0
    share: int | None = None
    share_reason: str = ""
    wish: int | None = None
    waited: bool = False
    nodes: dict[str, Node] = msgspec.field(default_factory=dict)
    epochs: dict[str, int] = msgspec.field(default_factory=dict)
    confirmed: set[str] = msgspec.field(default_factory=set)
    releasing: set[str] = msgspec.field(default_factory=set)
    silent_since: float | None = None
    user_requests: set[int] = msgspec.field(default_factory=set)
    progress: Progress = Progress()
    progress_at: float | None = None
    stepped_at: float = -math.inf
    steady_at: float | None = None
    steady_step: int = 0
    pace: dict[int, float] = msgspec.field(default_factory=dict)
    lost_steps: int = 0
    preemptions: int = 0
    resizes: int = 0
    refused_in: int = 0
    stalled_slots: int = 0
    progress_at_slot: float = -1.0
    watched: Watched = msgspec.field(default_factory=Watched)
    updated_at: float = -math.inf
    loss: float | None = None
    ended: Ended | None = None
    learned_at: float | None = None

    @property
    def spent(self) -> float:
        """Return the bill so far in dollars, ended nodes included."""
        return math.fsum(node.billed for node in self.nodes.values())

    @property
    def deadline_at(self) -> float:
        """Return the deadline that the user asked for last; the job's last slot ends before it."""
        if self.amended_deadline is not None:
            return self.amended_deadline
        given = self.submitted.deadline_at
        return self.moment(self.job.deadline) if given is None else given

    @property
    def priority(self) -> int:
        """Return the priority that the user asked for last."""
        given = self.amended_priority
        return self.submitted.priority if given is None else given

    @property
    def most_gpus(self) -> int:
        """Return the most GPUs that the job may hold now, by its terms and its share."""
        most = self.job.max_gpus
        return most if self.share is None else min(most, self.share)

    @property
    def waits(self) -> bool:
        """Return whether the job waits for GPUs that other jobs hold."""
        return self.most_gpus < self.job.min_gpus

    def moment(self, slot: int) -> float:
        """Return the moment at which slot ``slot`` ends."""
        return self.submitted.origin + slot * self.submitted.slot_s

    def slot_at(self, moment: float) -> int:
        """Return the slot that contains ``moment``, counted from 1."""
        elapsed = (moment - self.submitted.origin) / self.submitted.slot_s
        # Rounding may put the start of a slot slightly too early; it still opens that slot.
        return max(1, math.floor(elapsed + 1e-9) + 1)

    def slot_is_due(self, moment: float) -> bool:
        """Return whether the job must be decided or ended at ``moment``."""
        live = self.ending is None and not self.status.final
        stop_at = self.submitted.stop_at
        time_is_up = stop_at is not None and moment >= stop_at
        return live and (self.due or time_is_up or self.slot_at(moment) > self.slot)

    def alive(self, kind: NodeKind | None = None) -> list[Node]:
        """Return nodes that are requested or running and not being released, oldest first."""
        return [
            node
            for node in self.nodes.values()
            if node.state.alive
            and node.id not in self.releasing
            and (kind is None or node.kind is kind)
        ]

    def running(self) -> Allocation:
        """Return the GPUs that are running and not being released."""
        return _count(node for node in self.alive() if node.state is NodeState.RUNNING)

    def crashed(self) -> list[Node]:
        """Return the nodes that failed the job since its last step, oldest first."""
        return [
            node
            for node in self.nodes.values()
            if node.end is NodeEnd.CRASHED and (node.ended_at or 0.0) > self.stepped_at
        ]

    def held(self) -> Allocation:
        """Return what was held in the slot that ends, before any preemption.

        It is what runs now plus what was lost since the slot began, but at most what was wanted: a
        lost node and its replacement count once.
        """
        runs = self.running()
        lost = _count(
            node
            for node in self.nodes.values()
            if node.state is NodeState.LOST
            and node.started_at is not None
            and node.ended_at is not None
            and node.ended_at > self.slot_began
        )
        return Allocation(
            spot=max(runs.spot, min(runs.spot + lost.spot, self.wanted.spot)),
            on_demand=max(
                runs.on_demand, min(runs.on_demand + lost.on_demand, self.wanted.on_demand)
            ),
        )


def _count(nodes: Iterable[Node]) -> Allocation:
    kinds = [node.kind for node in nodes]
    return Allocation(spot=kinds.count(NodeKind.SPOT), on_demand=kinds.count(NodeKind.ON_DEMAND))


def highest_price(submitted: Submitted) -> float:
    """Return the highest spot price that the job pays, in dollars per member and slot."""
    if submitted.max_price is None:
        return math.inf
    return submitted.max_price * submitted.task.gpus * submitted.slot_s / 3600


def offered(observed: Observed, submitted: Submitted) -> tuple[Slot, Forecast]:
    """Return the market and forecast that the job can use.

    Spot GPUs above its highest price count as not available.
    """
    highest = highest_price(submitted)
    market = observed.market
    if market.spot_price > highest:
        market = msgspec.structs.replace(market, available=0)
    price = np.array(observed.forecast_price, dtype=np.float64)
    available = np.array(observed.forecast_available, dtype=np.int64)
    available[price > highest] = 0
    return market, Forecast(spot_price=price, available=available)


def seen_by(submitted: Submitted, watched: Watched, slot: int, market: Slot) -> Seen:
    """Return the market before the job and up to ``slot``, whose market is ``market``.

    Slots with a price above the job's highest price count as having no spot GPU.
    """
    slot = min(slot, MAX_SLOTS)
    past, before = submitted.past, slot - 1
    first = len(past.spot_price)
    prices, counts = np.empty(first + slot), np.empty(first + slot, dtype=np.int64)
    for column, old, seen, now in (
        (prices, past.prices, watched.prices, market.spot_price),
        (counts, past.counts, watched.counts, market.available),
    ):
        known = min(before, len(seen))
        column[:first] = old
        column[first : first + known] = seen[:known]
        column[first + known :] = seen[-1] if 0 < known < before else now
        column[-1] = now
    counts[prices > highest_price(submitted)] = 0
    return Seen(spot_price=prices, available=counts)
