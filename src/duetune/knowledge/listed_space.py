"""A space that is a list: exactly these configurations, such as the ones that were measured."""

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
    """A space of the rows of a table. Giving a value removes the rows that have another one."""

    rows: Configurations = msgspec.field(default_factory=lambda: Configurations.of(()))

    @classmethod
    def of(cls, rows: Configurations | Iterable[Configuration]) -> Listing:
        """Return the space of these configurations."""
        table = rows if isinstance(rows, Configurations) else Configurations.of(rows)
        domains = {field: Domain(values) for field in FIELDS if (values := _values(table, field))}
        return cls(domains, (), table)

    def given(self, partial: Mapping[str, object]) -> Listing:
        """Return the rows that have these values."""
        keep = np.ones(len(self.rows), np.bool_)
        for field, value in partial.items():
            keep &= _is_one_of(self.rows, field, (field_value(field, value),))
        return Listing.of(self.rows.take(np.flatnonzero(keep)))

    def with_values(self, field: str, values: tuple[Value, ...]) -> Listing:
        """Return the rows that have one of these values in the field."""
        known = tuple(field_value(field, value) for value in values)
        return Listing.of(self.rows.take(np.flatnonzero(_is_one_of(self.rows, field, known))))

    def without(self, ran_out: tuple[Configuration, ...]) -> Listing:
        """Return the space without configurations that need at least the memory of one that ran
        out.
        """
        if not ran_out:
            return self
        return Listing.of(self.rows.take(np.flatnonzero(~exceeding(self.rows, ran_out))))

    @property
    def missing(self) -> tuple[str, ...]:
        """Return no field: every row is complete."""
        return ()

    @functools.cached_property
    def combinations(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @functools.cached_property
    def cardinality(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def enumerate(self, chunk: int = CHUNK) -> Iterator[Configurations]:
        """Yield the rows in order, at most ``chunk`` at a time."""
        for start in range(0, len(self.rows), chunk):
            yield self.rows.take(np.arange(start, min(start + chunk, len(self.rows))))

    def points(self) -> Configurations:
        """Return all rows."""
        return self.rows

    def at(self, index: NDArray[np.int64]) -> Configurations:
        """Return the rows with these numbers."""
        return self.rows.take(index)

    def contains(self, configuration: Configuration) -> bool:
        """Return whether a configuration is one of the rows."""
        return any(row == configuration for row in self.rows)


def _values(table: Configurations, field: str) -> tuple[Value, ...]:
    """Return the values of a column in the order of the rows: the first row holds the site's
    default.
    """
    codes = table.columns[field]
    distinct, first = np.unique(codes, return_index=True)
    ordered = distinct[np.argsort(first, kind="stable")].tolist()
    if field in CATEGORIES:
        return tuple(table.labels[field][code] for code in ordered)
    return tuple(field_value(field, plain_number(field, each)) for each in ordered)


def _is_one_of(table: Configurations, field: str, values: tuple[Value, ...]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose field has one of these values."""
    keep = np.zeros(len(table), np.bool_)
    for value in values:
        keep |= table.is_(field, value) if isinstance(value, str) else table.number(field) == value
    return keep
