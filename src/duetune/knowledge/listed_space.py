"""A space that is a list: these very configurations and no others, such as those that were run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration import (
    CATEGORIES,
    FIELDS,
    Configuration,
    Configurations,
    plain_number,
)
from duetune.knowledge.configurations.space import CHUNK, Domain, Space, field_value
from duetune.knowledge.ranking import exceeding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Value


class Listing(Space, frozen=True, dict=True):
    """What is given or asked for takes away the rows that have it otherwise."""

    rows: Configurations = msgspec.field(default_factory=lambda: Configurations.of(()))

    @classmethod
    def of(cls, rows: Configurations | Iterable[Configuration]) -> Listing:
        table = rows if isinstance(rows, Configurations) else Configurations.of(rows)
        domains = {field: Domain(values) for field in FIELDS if (values := _values(table, field))}
        return cls(domains, (), table)

    def given(self, partial: Mapping[str, object]) -> Listing:
        keep = np.ones(len(self.rows), np.bool_)
        for field, value in partial.items():
            keep &= _is_one_of(self.rows, field, (field_value(field, value),))
        return Listing.of(self.rows.take(np.flatnonzero(keep)))

    def with_values(self, field: str, values: tuple[Value, ...]) -> Listing:
        known = tuple(field_value(field, value) for value in values)
        return Listing.of(self.rows.take(np.flatnonzero(_is_one_of(self.rows, field, known))))

    def without(self, ran_out: tuple[Configuration, ...]) -> Listing:
        """Less all that needs at least the memory of one of these."""
        if not ran_out:
            return self
        return Listing.of(self.rows.take(np.flatnonzero(~exceeding(self.rows, ran_out))))

    @property
    def missing(self) -> tuple[str, ...]:
        return ()

    @functools.cached_property
    def combinations(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def cardinality(self) -> int:
        return len(self.rows)

    def enumerate(self, chunk: int = CHUNK) -> Iterator[Configurations]:
        for start in range(0, len(self.rows), chunk):
            yield self.rows.take(np.arange(start, min(start + chunk, len(self.rows))))

    def points(self) -> Configurations:
        return self.rows

    def at(self, index: NDArray[np.int64]) -> Configurations:
        return self.rows.take(index)

    def contains(self, configuration: Configuration) -> bool:
        return any(row == configuration for row in self.rows)


def _values(table: Configurations, field: str) -> tuple[Value, ...]:
    """In the order in which they come: the site's first choice is the first row's."""
    codes = table.columns[field]
    distinct, first = np.unique(codes, return_index=True)
    ordered = distinct[np.argsort(first, kind="stable")].tolist()
    if field in CATEGORIES:
        return tuple(table.labels[field][code] for code in ordered)
    return tuple(field_value(field, plain_number(field, each)) for each in ordered)


def _is_one_of(table: Configurations, field: str, values: tuple[Value, ...]) -> NDArray[np.bool_]:
    keep = np.zeros(len(table), np.bool_)
    for value in values:
        keep |= table.is_(field, value) if isinstance(value, str) else table.number(field) == value
    return keep
