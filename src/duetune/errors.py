"""Every error duetune raises on purpose.

    DuetuneError
    ├── InvalidInput      what the user gave cannot be used: field, value, what is allowed
    │   └── OutOfMemory   what the user gave needs more memory than the GPU has
    ├── MissingExtra      an optional dependency is needed for this
    ├── NotFound          nothing by that name
    ├── SolverStopped     the integer program hit its time limit
    ├── FleetError        a fleet could not be asked; says whether a retry helps
    ├── StoreError        the database cannot be used just now
    ├── StaleController   somebody else has written to the journal; whoever loses stops
    └── Bug               an event that must not come; carries the story that led to it

Being late, preempted or infeasible is a value in an outcome, never an exception.
"""

from __future__ import annotations

from typing import ClassVar


class DuetuneError(Exception):
    """The root. ``code`` is stable for programs, ``exit_code`` for shells."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70


class InvalidInput(DuetuneError):
    """A value the user gave cannot be used, or a required one (None) is missing."""

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
    """What the user gave needs more memory than the GPU has."""

    code = "out_of_memory"


class MissingExtra(DuetuneError):
    """An optional dependency is needed for this."""

    code = "missing_extra"
    exit_code = 2

    def __init__(self, purpose: str, extra: str) -> None:
        self.purpose = purpose
        self.extra = extra
        super().__init__(f"{purpose} needs an optional part: pip install 'duetune[{extra}]'")


class NotFound(DuetuneError):
    """Nothing by that name."""

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
    """A fleet could not be asked. Whether the call had an effect is unknown."""

    code = "fleet"
    exit_code = 4

    def __init__(self, message: str, *, retry: bool = True) -> None:
        self.retry = retry
        super().__init__(message)


class StoreError(DuetuneError):
    """A database call failed altogether. Nothing is ever half-written; but if the connection broke
    during a commit, whether it had an effect is unknown: read before writing again.
    """

    code = "store"
    exit_code = 4

    def __init__(self, store: str, reason: str) -> None:
        self.store = store
        self.reason = reason
        super().__init__(f"the store {store} cannot be used: {reason}")


class StaleController(DuetuneError):
    """Somebody else has written to the journal: whoever loses stops."""

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
    """An event that must not come. ``story`` is what led to it."""

    code = "bug"

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        self.story = story
        super().__init__(message + ("; after " + ", ".join(story) if story else ""))


def shown(value: object) -> str:
    """A value as it stands in a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
