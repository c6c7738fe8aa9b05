"""Measured runs of jobs and profiling campaigns (table ``measurements``), used for advice."""

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
    """An append-only table of observations; the same observation is stored once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_all(self, observations: Iterable[Observation]) -> int:
        """Store all observations or none; return how many were new."""
        rows = [_row(observation) for observation in observations]
        if not rows:
            return 0
        insert = postgresql.insert if self._database.dialect == "postgresql" else sqlite.insert
        new = insert(sql_tables.measurements).on_conflict_do_nothing()
        with self._database.writing() as connection:
            keys = connection.scalars(new.returning(sql_tables.measurements.c.key), rows)
            return len(keys.all())

    def history(
        self,
        *,
        origin: Origin | None = None,
        provenance: str | None = None,
    ) -> History:
        """Return observations in the order they were measured; the arguments filter them."""
        columns = sql_tables.measurements.c
        query = select(columns.document).order_by(columns.measured_at, columns.key)
        if origin is not None:
            query = query.where(columns.origin == origin.value)
        if provenance is not None:
            query = query.where(columns.provenance == provenance)
        with self._database.reading() as connection:
            texts = connection.scalars(query).all()
        return History(msgspec.json.decode(text, type=Observation) for text in texts)


def _key(record: msgspec.Struct) -> str:
    """Return a digest of the fields that differ from their defaults.

    A field that is added later with a default changes no key.
    """
    text = msgspec.json.encode(_given(record), order="sorted")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct; cached because the lookup is slower than the rest of a row."""
    return msgspec.structs.fields(kind)


def _given(record: msgspec.Struct) -> dict[str, object]:
    given: dict[str, object] = {}
    for field in _fields(type(record)):
        value = getattr(record, field.name)
        if value != field.default:
            given[field.name] = _given(value) if isinstance(value, msgspec.Struct) else value
    return given


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
