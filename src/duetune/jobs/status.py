"""The status of a job at this moment: the journal's state, with newer facts from fleet and
workers.
"""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import GivenUp, Status
from duetune.core.fleet import Node, NodeKind, NodeState
from duetune.core.node_contract import LOGS, PROGRESS
from duetune.core.progress import Progress
from duetune.errors import FleetError
from duetune.fleets.host import ANSWER_S, answered
from duetune.jobs.spec.values import written_duration
from duetune.notebook import html_fields, sparkline
from duetune.simulate.journal_replay import state_of
from duetune.store.rows import JobRow
from duetune.training.metrics import METRICS, sampled_losses
from duetune.training.worker_contract import read_progress

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.core.fleet import FleetReport, MarketReport
    from duetune.engine.state import JobState
    from duetune.fleets.host import Connected
    from duetune.settings import Settings
    from duetune.store.store import Store

TAIL_LINES = 5
TAIL_BYTES = 4000
CURVE_POINTS = 24


class MarketNow(msgspec.Struct, frozen=True):
    """The market now; prices in dollars per GPU and hour."""

    spot_price: float
    available: int
    on_demand_price: float


class JobStatus(msgspec.Struct, frozen=True):
    """The status of one job. ``now`` and all moments are of the fleet's clock; None if no fleet is
    running.

    - ``projected_finish`` is when the job finishes if it keeps the GPUs it has.
    - ``slot`` is the present slot and ``deadline_slot`` the last one that is on time.
    - ``share_reason`` says why the queue gives the job no more GPUs, as of ``share_slot``;
      ``holders`` are the GPUs that other jobs hold now.
    - ``fleet_silent_s`` is for how many real seconds the fleet has not answered. Nodes and money
      are then those of the journal.
    - ``given_up`` is set if the policy has given the job up; it has the terms that would save it.
    - ``trouble`` says how many nodes have failed the job since its last step. It and ``log_tail``,
      the last lines of such a node's log, are empty if none has and the job has not failed.
    - ``curve`` has a few training losses from the whole run, in the order of steps.
    """

    job: JobRow
    progress: Progress
    nodes: tuple[Node, ...]
    spent: float
    slot: int
    deadline_slot: int
    slot_s: float
    lost_steps: int
    resizes: int
    now: float | None = None
    market: MarketNow | None = None
    projected_finish: float | None = None
    controller: int | None = None
    share_reason: str = ""
    share_slot: int | None = None
    holders: dict[str, int] = {}
    fleet_silent_s: float | None = None
    given_up: GivenUp | None = None
    trouble: str = ""
    log_tail: tuple[str, ...] = ()
    curve: tuple[float, ...] = ()

    @property
    def held(self) -> Allocation:
        """Return the GPUs that run now; a node may have several."""
        gpus = dict.fromkeys(NodeKind, 0)
        for node in self.nodes:
            gpus[node.kind] += node.gpus * (node.state is NodeState.RUNNING)
        return Allocation(gpus[NodeKind.SPOT], gpus[NodeKind.ON_DEMAND])

    @property
    def node_text(self) -> str:
        """Return how many nodes the GPUs are on, such as " on 2 nodes"; empty if each has one."""
        running = [node for node in self.nodes if node.state is NodeState.RUNNING]
        if all(node.gpus == 1 for node in running):
            return ""
        return f" on {len(running)} node{'s' if len(running) > 1 else ''}"

    @property
    def loss_text(self) -> str:
        """Return the last loss, its curve and the evaluation losses; empty if none is known."""
        progress, words = self.progress, []
        if progress.loss is not None:
            words.append(f"{progress.loss:.3f} {sparkline(self.curve)}".rstrip())
        if progress.eval_loss is not None:
            base = progress.base_eval_loss
            before = "" if base is None else f"{base:.3f} -> "
            words.append(f"evaluation {before}{progress.eval_loss:.3f}")
        if progress.best_eval_loss is not None:
            words.append(f"best {progress.best_eval_loss:.3f} after step {progress.best_step:,}")
        return ", ".join(words)

    @property
    def given_up_text(self) -> str:
        """Return why the job is given up and what would save it; empty if it is not given up."""
        now = self.job.updated_at if self.now is None else self.now
        return "" if self.given_up is None else given_up_text(self.given_up, now)

    @property
    def slot_text(self) -> str:
        """Return the present slot in words, with how far past the deadline it is."""
        over = self.slot - self.deadline_slot
        if over <= 0:
            return f"slot {self.slot} of {self.deadline_slot}"
        if self.now is not None and self.now <= self.job.deadline_at:
            return f"slot {self.slot}, after the last whole slot before the deadline"
        return f"slot {self.slot}, past the deadline by {over} slot{'s' if over > 1 else ''}"

    def _repr_html_(self) -> str:
        held = self.held
        total = self.progress.total_steps or self.job.total_steps
        return html_fields(
            {
                "status": self.job.status.value,
                "steps": f"{self.progress.step} of {total}",
                **({"loss": self.loss_text} if self.loss_text else {}),
                **({"note": self.progress.message} if self.progress.message else {}),
                "GPUs": f"{held.spot} spot, {held.on_demand} on-demand{self.node_text}",
                "spent": f"${self.spent:.2f}",
                "due": self.slot_text,
                "policy": self.job.policy,
                "why": self.job.reason,
                **({"given up": self.given_up_text} if self.given_up else {}),
                **({"trouble": self.trouble} if self.trouble else {}),
            },
            self.job.id,
        )


def remaining_s(state: JobState, progress: Progress, running: int, speed: float) -> float | None:
    """Return the market seconds until the last step if ``running`` nodes go on; None if unknown.

    The workers' own time per step counts if the same number of them has measured it: the policy
    learns it only at the next slot.
    """
    if not running or not progress.total_steps:
        return None
    left = max(0, progress.total_steps - progress.step)
    if progress.step_s and progress.world == running:
        return left * progress.step_s * speed
    curve = state.job.throughput
    pace = curve[min(running, len(curve) - 1)]
    return left / pace * state.submitted.slot_s if pace > 0 else None


def job_status(
    job: JobRow,
    settings: Settings,
    store: Store,
    fleet: Connected | None,
    *,
    controller: int | None = None,
) -> JobStatus:
    """Return the status of a job; ``duetune status`` and ``launch`` call it again and again.

    ``settings`` and ``fleet`` are those of the job's fleet.
    """
    state = state_of(store.journal.read(job.id), stream=job.id)
    progress = state.progress
    nodes = tuple(state.nodes.values())
    now = market = silent = None
    if not job.status.final:
        progress = read_progress(settings.folder(job.id) / PROGRESS) or progress
        answer = None if fleet is None else _asked(fleet, job.id)
        if answer is not None:
            seen, report = answer
            nodes = seen.nodes or nodes
            hours = report.slot_s / 3600
            now = report.at
            market = MarketNow(
                report.slot.spot_price / hours,
                report.slot.available,
                report.slot.on_demand_price / hours,
            )
        elif fleet is not None:
            # The clock needs no answer.
            now = fleet.clock.now()
            silent = silent_s(state, fleet) or ANSWER_S
    running = sum(node.state is NodeState.RUNNING for node in nodes)
    # The fleet's own speed: that of the settings may belong to another fleet.
    left_s = None if fleet is None else remaining_s(state, progress, running, fleet.speed)
    trouble, suspect = _trouble(job, state)
    return JobStatus(
        job=job,
        progress=progress,
        nodes=nodes,
        spent=job.cost if job.cost is not None else sum(node.billed for node in nodes),
        slot=state.slot if now is None else state.slot_at(now),
        deadline_slot=state.job.deadline,
        slot_s=state.submitted.slot_s,
        lost_steps=state.lost_steps,
        resizes=state.resizes,
        now=now,
        market=market,
        projected_finish=None if now is None or left_s is None else now + left_s,
        controller=controller,
        share_reason=state.share_reason if job.limited else "",
        share_slot=state.slot if job.limited else None,
        holders=_holders(job, settings, store) if job.limited else {},
        fleet_silent_s=silent,
        given_up=job.given_up,
        trouble=trouble,
        log_tail=_tail(settings.folder(job.id) / LOGS / f"{suspect}.log") if suspect else (),
        curve=sampled_losses(settings.folder(job.id) / METRICS, CURVE_POINTS),
    )


def silent_s(state: JobState, fleet: Connected | None) -> float | None:
    """Return for how many real seconds the fleet has not answered, by the journal of a job.

    None means that it answers, or that no controller has noticed yet.
    """
    if state.silent_since is None or fleet is None:
        return None
    return max(0.0, fleet.clock.now() - state.silent_since) / fleet.speed


def _asked(fleet: Connected, job: str) -> tuple[FleetReport, MarketReport] | None:
    """Return the job's nodes and the market; None if the fleet does not answer soon."""
    with suppress(FleetError):
        return answered(lambda: (fleet.fleet.observe(job), fleet.feed.now()))
    return None


def given_up_text(lost: GivenUp, now: float) -> str:
    """Return the sentence about a job that is given up; the deadline counts from ``now``."""
    left = math.ceil(max(0.0, (lost.deadline or now) - now) / 60) * 60
    return lost.text(f"{written_duration(timedelta(seconds=left))} from now")


def _trouble(job: JobRow, state: JobState) -> tuple[str, str]:
    """Return what went wrong since the last step, and the node whose log shows it."""
    if job.status is Status.FAILED:
        ran = [node.id for node in state.nodes.values() if node.started_at is not None]
        return "", ran[-1] if ran else ""
    crashed = [] if job.status.final else state.crashed()
    if not crashed:
        return "", ""
    nodes = "a node" if len(crashed) == 1 else f"{len(crashed)} nodes"
    text = (
        f"{nodes} failed since the last step: the process was killed or the disk is full; "
        "the job goes on with another node"
    )
    return text, crashed[-1].id


def _tail(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log, or nothing if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-TAIL_LINES:])


def _holders(job: JobRow, settings: Settings, store: Store) -> dict[str, int]:
    """Return the GPUs that other active jobs on the same fleet hold."""
    rows = store.jobs(status=[each for each in Status if not each.final])
    names = settings.names_in_rows
    held = {
        row.id: row.spot + row.on_demand for row in rows if row.id != job.id and row.fleet in names
    }
    return {name: gpus for name, gpus in held.items() if gpus}
