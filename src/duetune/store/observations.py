"""Throughput as it was measured: what later configurations are advised from."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from duetune.store import tables
from duetune.store.database import parsed

if TYPE_CHECKING:
    from duetune.store.database import Database


class RunOutcome(StrEnum):
    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one number of GPUs. ``global_batch`` is in sequences per optimiser step,
    ``microbatch`` per GPU and pass; ``versions`` names the software that matters. Rates are None
    if the run did not get that far; ``measured_at`` is wall time.
    """

    job: str
    gpus: int
    model: str
    method: str
    gpu: str
    microbatch: int
    global_batch: int
    sequence_length: int
    precision: str
    measured_at: float
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    outcome: RunOutcome = RunOutcome.MEASURED


class Observations:
    """Append-only. A job counts once at each number of GPUs: the first word stands."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, observation: Observation) -> bool:
        """False if this job was recorded at this number of GPUs before; nothing changes then."""
        columns = tables.observations.c
        known = select(columns.job).where(
            columns.job == observation.job, columns.gpus == observation.gpus
        )
        with self._database.writing() as connection:
            if connection.scalar(known) is not None:
                return False
            try:
                with connection.begin_nested():
                    connection.execute(
                        insert(tables.observations), msgspec.to_builtins(observation)
                    )
            except IntegrityError:
                return False
        return True

    def observations(self, *, model: str | None = None) -> list[Observation]:
        """All, or those of one model, in the order they were measured."""
        columns = tables.observations.c
        query = select(tables.observations).order_by(columns.measured_at, columns.job, columns.gpus)
        if model is not None:
            query = query.where(columns.model == model)
        with self._database.reading() as connection:
            return [parsed(found, Observation) for found in connection.execute(query).mappings()]
