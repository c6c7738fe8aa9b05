"""Training that is only pretended: nodes of a memory fleet do steps as the job's curve says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.progress import Phase, Progress

if TYPE_CHECKING:
    from duetune.core.job import Job
    from duetune.testing.memory_fleet import MemoryFleet


class PretendTraining:
    """The ``Reports`` of jobs on a ``MemoryFleet``: as time passes, whatever runs does its work.

    ``pace`` scales every job's curve: below 1 the real thing is slower than was thought. Work of a
    step in progress is lost with the last node, and kept while one is left.
    """

    def __init__(self, fleet: MemoryFleet, *, slot_s: float, pace: float = 1.0) -> None:
        self.fleet, self.slot_s, self.pace = fleet, slot_s, pace
        self.hazards: dict[str, tuple[float, int]] = {}
        self._jobs: dict[str, tuple[Job, int]] = {}
        self._done: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._world: dict[str, int] = {}

    def add(self, name: str, job: Job, total_steps: int) -> None:
        self._jobs[name] = (job, total_steps)
        self._done[name] = 0.0
        self._seen[name] = self.fleet.clock.now()
        self._world[name] = 0

    def read(self, job: str) -> tuple[Progress, float] | None:
        if job not in self._jobs:
            return None
        terms, total = self._jobs[job]
        now = self.fleet.clock.now()
        elapsed = now - self._seen[job]
        running = self.fleet.running(job)
        world = min(self._world[job], terms.max_gpus)
        self._done[job] += self.pace * terms.throughput[world] * elapsed / self.slot_s
        self._seen[job] = now
        self._world[job] = len(running)
        if not running:
            self._done[job] = float(int(self._done[job]))
        step = min(total, int(self._done[job]))
        done = step >= total
        if done:
            for node in running:
                self.fleet.finish(node)
        curve = terms.throughput[world]
        return (
            Progress(
                step=step,
                total_steps=total,
                world=world,
                step_s=self.slot_s / (self.pace * curve) if curve else None,
                checkpoint_step=step,
                phase=Phase.FINISHED if done else Phase.TRAINING,
                output="output" if done else "",
                at=now,
            ),
            now,
        )

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        self.hazards[job] = (lived_s, losses)
