"""Every error that duetune raises on purpose.

    DuetuneError
    ├── InvalidInput      a value cannot be used: names the field, the value and what is allowed
    │   └── OutOfMemory   the configuration needs more memory than the GPU has
    ├── MissingExtra      an optional dependency is missing
    ├── NotFound          nothing has that name
    ├── SolverStopped     the integer program hit its time limit
    ├── FleetError        a call of the fleet failed; says whether a retry helps
    ├── StoreError        a call of the database failed
    │   └── StoreLost     the database was deleted or replaced while jobs exist
    ├── StorageError      a call of the storage of files failed; says whether a retry helps
    ├── StaleController   another controller has written to the journal; this one stops
    └── Bug               an event that is illegal now; lists the events before it

A job that is late, preempted or infeasible is a value in an outcome, never an exception.
"""

from __future__ import annotations

from typing import ClassVar


class DuetuneError(Exception):
    """The root of all errors.

    ``code`` names the error for programs and does not change. ``exit_code`` is the exit status of
    a command that ends with the error.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70


class InvalidInput(DuetuneError):
    """A value that the user gave cannot be used, or a required one (None) is missing.

    ``field`` says where it is, ``value`` what it is, and ``allowed`` what is expected instead.
    """

    code = "invalid_input"
    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        if value is None:
            super().__init__(f"{field} is required; expected {allowed}")
        else:
            super().__init__(f"{field}: {shown(value)} is not allowed; expected {allowed}")


class OutOfMemory(InvalidInput):
    """The configuration needs more memory than the GPU has."""

    code = "out_of_memory"


class MissingExtra(DuetuneError):
    """An optional dependency is missing; the message says how to install it."""

    code = "missing_extra"
    exit_code = 2

    def __init__(self, purpose: str, extra: str) -> None:
        self.purpose = purpose
        self.extra = extra
        super().__init__(f"{purpose} needs an optional part: pip install 'duetune[{extra}]'")


class NotFound(DuetuneError):
    """Nothing has that name; the message may list known names."""

    code = "not_found"
    exit_code = 3

    def __init__(self, kind: str, name: str, known: str = "") -> None:
        self.kind = kind
        self.name = name
        hint = f"; known: {known}" if known else ""
        super().__init__(f"no {kind} named {shown(name)}{hint}")


class SolverStopped(DuetuneError):
    """The integer program was not solved to optimality within its limits."""

    code = "solver_stopped"
    exit_code = 4


class FleetError(DuetuneError):
    """A call of the fleet failed; it is unknown whether it had an effect.

    ``retry`` says whether the same call may succeed later.
    """

    code = "fleet"
    exit_code = 4

    def __init__(self, message: str, *, retry: bool = True) -> None:
        self.retry = retry
        super().__init__(message)


class StoreError(DuetuneError):
    """A call of the database failed. Nothing is ever half-written.

    If the connection broke during a commit, it is unknown whether the commit took effect: read
    before you write again.
    """

    code = "store"
    exit_code = 4

    def __init__(self, store: str, reason: str) -> None:
        self.store = store
        self.reason = reason
        super().__init__(f"the store {store} cannot be used: {reason}")


class StoreLost(StoreError):
    """The database was deleted or replaced, although its jobs exist. Only the user can help."""

    code = "store_lost"


class StorageError(DuetuneError, OSError):
    """A call of the storage of a job's files failed; it is unknown whether it had an effect.

    ``retry`` says whether the same call may succeed later. It is an ``OSError``, because a bucket
    that is away is treated like a disk that is full.
    """

    code = "storage"
    exit_code = 4

    def __init__(self, url: str, reason: str, *, retry: bool) -> None:
        self.url = url
        self.reason = reason
        self.retry = retry
        super().__init__(f"the storage {url} cannot be used: {reason}")


class StaleController(DuetuneError):
    """Another controller has written to the journal, so this one must stop."""

    code = "stale_controller"
    exit_code = 4

    def __init__(self, stream: str, expected: int) -> None:
        self.stream = stream
        self.expected = expected
        super().__init__(
            f"another controller has written to job {stream!r} after event {expected}; "
            "this one stops"
        )


class Bug(DuetuneError):
    """An event that is illegal in the job's status. ``story`` lists the events before it."""

    code = "bug"

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        self.story = story
        super().__init__(message + ("; after " + ", ".join(story) if story else ""))


def shown(value: object) -> str:
    """Return ``value`` as text for a message: one line, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
