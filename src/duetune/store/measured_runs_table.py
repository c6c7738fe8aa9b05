"""What was measured, by jobs, campaigns and others: what later configurations are advised from."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from duetune.knowledge.history import History
from duetune.knowledge.observation import Observation
from duetune.store import sql_tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.knowledge.observation import Origin
    from duetune.store.database import Database


class Observations:
    """Append-only. The same observation is kept once, however often it is recorded."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, observation: Observation) -> bool:
        """False if it was known; nothing changes then."""
        return self.record_all([observation]) == 1

    def record_all(self, observations: Iterable[Observation]) -> int:
        """How many of them were new. All are written, or none."""
        rows = [_row(each) for each in observations]
        if not rows:
            return 0
        insert = postgresql.insert if self._database.dialect == "postgresql" else sqlite.insert
        new = insert(sql_tables.measurements).on_conflict_do_nothing()
        with self._database.writing() as connection:
            told = new.returning(sql_tables.measurements.c.key)
            return len(connection.scalars(told, rows).all())

    def history(
        self,
        *,
        model: str | None = None,
        origin: Origin | None = None,
        provenance: str | None = None,
    ) -> History:
        """All, or those of one model, origin or place, in the order they were measured."""
        columns = sql_tables.measurements.c
        query = select(columns.document).order_by(columns.measured_at, columns.key)
        if model is not None:
            query = query.where(columns.model == model)
        if origin is not None:
            query = query.where(columns.origin == origin.value)
        if provenance is not None:
            query = query.where(columns.provenance == provenance)
        with self._database.reading() as connection:
            texts = connection.scalars(query).all()
        return History(msgspec.json.decode(text, type=Observation) for text in texts)


def _key(record: msgspec.Struct) -> str:
    """Of what differs from the defaults, so that a field that is added one day changes no key."""
    text = msgspec.json.encode(_told(record), order="sorted")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Looked up once: it takes longer than all the rest of a row."""
    return msgspec.structs.fields(kind)


def _told(record: msgspec.Struct) -> dict[str, object]:
    told: dict[str, object] = {}
    for field in _fields(type(record)):
        value = getattr(record, field.name)
        if value != field.default:
            told[field.name] = _told(value) if isinstance(value, msgspec.Struct) else value
    return told


def _row(observation: Observation) -> dict[str, object]:
    configuration = observation.configuration
    return {
        "key": _key(observation),
        "measured_at": observation.measured_at,
        "origin": observation.origin.value,
        "provenance": observation.provenance,
        "model": configuration.model,
        "gpu_model": configuration.gpu_model,
        "method": configuration.method.value,
        "num_gpus": configuration.num_gpus,
        "outcome": observation.outcome.value,
        "configuration_key": _key(configuration),
        "document": msgspec.json.encode(observation, order="sorted").decode(),
    }
