"""The configurations to choose from: values for each field, and constraints on them.

``space_files`` reads spaces from YAML; ``space_sampling`` draws points from them.
"""

from __future__ import annotations

import difflib
import functools
import math
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    ADDED,
    CATEGORIES,
    DEFAULTS,
    FIELDS,
    Configuration,
    Configurations,
    Value,
)
from duetune.knowledge.configurations.configuration_rules import Constraint, broken
from duetune.knowledge.facts.gpus import gpu_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CHUNK = 65536
_MOST = 2**62  # combinations are numbered by 64-bit integers


class Role(StrEnum):
    """Who decides the value of a field: the user, the scheduler, or the site for all jobs."""

    GIVEN = "given"
    FREE = "free"
    FIXED = "fixed"


class Domain(msgspec.Struct, frozen=True):
    """The possible values of one field.

    A ``given`` field has one value, or none until the user gives it. A ``fixed`` field may have
    several values if a constraint selects one of them.
    """

    values: tuple[Value, ...]
    role: Role = Role.FREE


class Space(msgspec.Struct, frozen=True, dict=True):
    """A set of configurations. Fields that are not named take their default and may be given."""

    domains: dict[str, Domain]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        for field, domain in self.domains.items():
            _known(field)
            if len(set(domain.values)) < len(domain.values):
                raise InvalidInput(field, list(domain.values), "every value once")
            if domain.role is Role.GIVEN and len(domain.values) > 1:
                raise InvalidInput(field, list(domain.values), "one value, since it is given")
            if domain.role is not Role.GIVEN and not domain.values:
                raise InvalidInput(field, [], "one or more values")
            for value in domain.values:
                if field_value(field, value) != value:
                    raise InvalidInput(field, value, f"{field_value(field, value)!r}")
        if self.combinations > _MOST:
            raise InvalidInput("space", self.combinations, f"at most {_MOST} combinations")

    def given(self, partial: Mapping[str, object]) -> Space:
        """Return the space with these fields set by the user, even to values that it did not
        contain.
        """
        domains = dict(self.domains)
        for field, value in partial.items():
            chosen = field_value(field, value)
            domain = domains.get(field)
            if domain and domain.role is Role.FIXED and chosen not in domain.values:
                allowed = " or ".join(str(each) for each in domain.values)
                raise InvalidInput(field, value, f"{allowed}, which is fixed here")
            domains[field] = Domain((chosen,), Role.GIVEN)
        return Space(domains, self.constraints)

    def with_values(self, field: str, values: tuple[Value, ...]) -> Space:
        """Return the space with other values to choose from for one field."""
        known = tuple(field_value(field, value) for value in values)
        return Space({**self.domains, field: Domain(known)}, self.constraints)

    @functools.cached_property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of every field, in the order of the record."""
        found: dict[str, tuple[Value, ...]] = {}
        for field in FIELDS:
            values = self.domains[field].values if field in self.domains else ()
            found[field] = values or ((DEFAULTS[field],) if field in DEFAULTS else ())
        return found

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the fields that must be given before the space contains any configuration."""
        return tuple(field for field, values in self.values.items() if not values)

    @property
    def free(self) -> tuple[str, ...]:
        """Return the fields with more than one value that the scheduler may choose."""
        return tuple(
            field
            for field in FIELDS
            if field in self.domains
            and self.domains[field].role is Role.FREE
            and len(self.domains[field].values) > 1
        )

    @functools.cached_property
    def combinations(self) -> int:
        """Return the number of combinations, allowed or not; a missing field counts as one
        value.
        """
        return math.prod(max(1, len(values)) for values in self.values.values())

    @functools.cached_property
    def cardinality(self) -> int:
        """Return the number of points that the constraints allow.

        Groups of fields that no constraint connects are counted separately, so that large spaces
        need not be enumerated.
        """
        total = self.combinations
        for fields, constraints in self._ties():
            absent = [field for field in fields if field in self.missing]
            if absent:
                raise InvalidInput(absent[0], None, "a value, since a constraint depends on it")
            sizes = [len(self.values[field]) for field in fields]
            there = math.prod(sizes)
            kept = 0
            for start in range(0, there, CHUNK):
                index = np.arange(start, min(start + CHUNK, there), dtype=np.int64)
                part = self._build(_digits(index, fields, sizes), len(index))
                kept += int(np.sum(_all_hold(part, constraints)))
            total = total // there * kept
        return total

    def enumerate(self, chunk: int = CHUNK) -> Iterator[Configurations]:
        """Yield all points that the constraints allow, at most ``chunk`` at a time.

        The last field of the record varies fastest. Rules are not applied here: a source reports
        which points break one.
        """
        for start in range(0, self.combinations, chunk):
            stop = min(start + chunk, self.combinations)
            part = self.at(np.arange(start, stop, dtype=np.int64))
            yield part.take(_all_hold(part, self.constraints))

    def points(self) -> Configurations:
        """Return all points in one table; use it for spaces that fit in memory."""
        parts = [self.at(np.zeros(0, np.int64)), *self.enumerate()]
        columns = {
            field: np.concatenate([part.columns[field] for part in parts]) for field in FIELDS
        }
        return Configurations(columns, parts[0].labels)

    def at(self, index: NDArray[np.int64]) -> Configurations:
        """Return the combinations with these numbers, allowed or not; sampling calls this."""
        if self.missing:
            raise InvalidInput(self.missing[0], None, "a value: the space has none for it")
        sizes = [len(self.values[field]) for field in FIELDS]
        return self._build(_digits(index, FIELDS, sizes), len(index))

    def allowed(self, configurations: Configurations) -> NDArray[np.bool_]:
        """Return a mask of the configurations that break neither a rule nor a constraint."""
        return (broken(configurations) < 0) & _all_hold(configurations, self.constraints)

    def contains(self, configuration: Configuration) -> bool:
        """Return whether a configuration is one of the points."""
        there = all(
            getattr(configuration, field) in values for field, values in self.values.items()
        )
        return there and bool(_all_hold(Configurations.of([configuration]), self.constraints)[0])

    def _build(self, digits: Mapping[str, NDArray[np.int64]], size: int) -> Configurations:
        """Return the table for these digits. A field without digits takes its first value, and the
        empty word if it has no value.
        """
        columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {}
        labels: dict[str, tuple[str, ...]] = {}
        nothing = np.zeros(size, np.int64)
        for field, values in self.values.items():
            index = digits.get(field, nothing)
            if field in CATEGORIES:
                labels[field] = tuple(str(value) for value in values) or ("",)
                columns[field] = index
            else:
                columns[field] = np.array(values, np.float64)[index]
        return Configurations(columns, labels)

    def _ties(self) -> list[tuple[list[str], list[Constraint]]]:
        """Return groups of fields that constraints connect, each with its constraints."""
        groups: list[tuple[set[str], list[Constraint]]] = []
        for constraint in self.constraints:
            tied = [group for group in groups if group[0] & constraint.fields]
            fields = constraint.fields.union(*(group[0] for group in tied))
            constraints = [each for group in tied for each in group[1]]
            groups = [group for group in groups if group not in tied]
            groups.append((set(fields), [*constraints, constraint]))
        return [([each for each in FIELDS if each in group[0]], group[1]) for group in groups]


def field_value(field: str, value: object) -> Value:
    """Return the value as a configuration stores it, or raise ``InvalidInput`` if it is not
    valid.
    """
    kind = _known(field).type
    try:
        converted: Value = msgspec.convert(value, kind)
    except (msgspec.ValidationError, TypeError):
        raise InvalidInput(field, value, _allowed(kind)) from None
    if field == "gpu_model":
        return gpu_name(str(converted)) or str(converted)
    if isinstance(converted, str):
        return str(converted)
    if field not in _MAY_BE_ZERO and converted < 1:
        raise InvalidInput(field, value, "a whole number, one or more")
    if converted < 0 or not math.isfinite(converted):
        raise InvalidInput(field, value, "a number, zero or more")
    return converted


_FIELDS = {field.name: field for field in msgspec.structs.fields(Configuration)}
_MAY_BE_ZERO = frozenset(
    ("grad_checkpoint", "fast_kernels", "fast_moe", "memory_cap_gb", "lora_rank", *ADDED)
)


def _known(field: str) -> msgspec.structs.FieldInfo:
    if field not in _FIELDS:
        near = difflib.get_close_matches(field, FIELDS)
        raise InvalidInput("field", field, f"one of {', '.join(near or FIELDS)}")
    return _FIELDS[field]


def _allowed(kind: object) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"one of {', '.join(kind)}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(kind, "another value") if isinstance(kind, type) else "another value"


def _digits(
    index: NDArray[np.int64], fields: Sequence[str], sizes: Sequence[int]
) -> dict[str, NDArray[np.int64]]:
    """Return which value each field has in the combinations with these numbers."""
    digits: dict[str, NDArray[np.int64]] = {}
    for field, size in zip(reversed(fields), reversed(sizes), strict=True):
        index, digits[field] = np.divmod(index, size)
    return digits


def _all_hold(
    configurations: Configurations, constraints: Sequence[Constraint]
) -> NDArray[np.bool_]:
    """Return a mask of the rows that satisfy all constraints."""
    hold = np.ones(len(configurations), np.bool_)
    for constraint in constraints:
        hold &= constraint.holds(configurations)
    return hold
