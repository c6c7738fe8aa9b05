"""A recovery strategy for SkyPilot's managed jobs that keeps a deadline.

SkyPilot loads it into its API server and its jobs controller. In ``~/.sky/plugins.yaml`` there::

    plugins:
      - class: duetune.interop.skypilot_strategy.DeadlinePlugin

A task then says ``job_recovery: {strategy: duetune, deadline: 10h, work: 6h}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sky.jobs import recovery_strategy
from sky.server import plugins
from sky.utils import registry, schemas

from duetune.files import OWNER, make_folder, write_whole
from duetune.interop.deadline_recovery import DeadlineRecovery, RecoveryRecord, RecoveryTerms
from duetune.policies.single_instance import Instance

if TYPE_CHECKING:
    from sky.resources import Resources

NAME = "DUETUNE"
FOLDER = "~/.sky/duetune"
ON_DEMAND_TRIES = 3
RETRY_S = 60.0
log = logging.getLogger("sky.jobs.duetune")


class DeadlinePlugin(plugins.BasePlugin):  # type: ignore[misc] # SkyPilot is not always here
    """Registers the strategy, and the words that a task may say to it."""

    def install(self, extension_context: object) -> None:
        """Register the strategy, unless that was done; SkyPilot calls it in every process."""
        del extension_context
        if NAME.lower() not in registry.JOBS_RECOVERY_STRATEGY_REGISTRY:
            registry.JOBS_RECOVERY_STRATEGY_REGISTRY.type_register(name=NAME)(DeadlineStrategy)
        for field in msgspec.structs.fields(RecoveryTerms):
            kind = "number" if field.type is float else "string"
            schemas.register_job_recovery_property(field.name, {"type": kind})


class DeadlineStrategy(recovery_strategy.FailoverStrategyExecutor):  # type: ignore[misc]
    """Launches a managed job on spot or on-demand machines, or waits, so that it meets its
    deadline.
    """

    def set_strategy_config(self, config: dict[str, object]) -> None:
        """Take what the task says to the strategy; SkyPilot calls it once, before ``launch``."""
        self._terms = RecoveryTerms.of(config)
        self._asked = list(self.dag.tasks[0].resources)
        self._file = Path(FOLDER).expanduser() / f"{self.job_id}-{self.task_id}.json"
        record = RecoveryRecord(began_at=time.time())
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            # The jobs controller was restarted.
            record = msgspec.json.decode(self._file.read_bytes(), type=RecoveryRecord)
        self._plan = DeadlineRecovery(self._terms, record)
        self._write()

    async def launch(self) -> float:
        """Start the job for the first time, and return when it was submitted."""
        return await self._acquire(recovery=False)

    async def recover(self) -> float:
        """Start the job again after its machine was lost, and return when it was submitted."""
        self._plan.lost(time.time())
        self._write()
        await asyncio.to_thread(self._cleanup_cluster)
        return await self._acquire(recovery=True)

    async def _acquire(self, *, recovery: bool) -> float:
        """Try, wait and try again until the job runs."""
        while True:
            if self._plan.wants_spot(time.time()):
                log.info("duetune: try spot")
                at = await self._tried(Instance.SPOT, recovery=recovery)
                if at is not None:
                    return at
            choice = self._plan.choose(time.time(), spot=False)
            log.info("duetune: no spot machine now; next: %s", choice)
            if choice is Instance.ON_DEMAND:
                at = await self._tried(Instance.ON_DEMAND, recovery=recovery)
                if at is not None:
                    return at
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(self._plan.tick_s)

    async def _tried(self, kind: Instance, *, recovery: bool) -> float | None:
        """Return when the job was submitted to a machine of this kind; None if there is none."""
        began_at = time.time()
        task = self.dag.tasks[0]
        task.set_resources([self._resources(each, kind) for each in self._asked])
        on_spot = kind is Instance.SPOT
        # Infrastructure that queues instead of refusing would wait for ever.
        limit_s = self._terms.seconds("spot_wait") if on_spot else None
        found: float | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                found = await self._launch(
                    max_retry=1 if on_spot else ON_DEMAND_TRIES,
                    raise_on_failure=False,
                    recovery=recovery,
                )
        if found is None:
            await asyncio.to_thread(self._cleanup_cluster)
            return None
        if on_spot:
            self._plan.choose(began_at, spot=True)  # there was some: that is worth knowing
        self._plan.started(kind, began_at)
        self._write()
        return found

    def _resources(self, asked: Resources, kind: Instance) -> Resources:
        """Return what the task asks for, on machines of this kind."""
        if not self._terms.spot:
            return asked.copy(use_spot=kind is Instance.SPOT)
        place = self._terms.spot if kind is Instance.SPOT else self._terms.on_demand
        return asked.copy(cloud=None, region=None, zone=None, infra=place)

    def _write(self) -> None:
        """Keep what happened, for a controller that is restarted."""
        with contextlib.suppress(OSError):
            make_folder(self._file.parent)
            write_whole(self._file, msgspec.json.encode(self._plan.record), mode=OWNER)
