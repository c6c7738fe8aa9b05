"""What a field of the job spec means, and what is wrong with a spec.

Each field states its meaning once, as a ``Meaning``; the JSON schema, the reference page and all
error messages use that text. This module also turns pydantic's errors into one ``InvalidSpec`` that
names the field, the value and what is allowed. The parsers of single values are in their own
modules (``values``, ``variables``).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import msgspec
from pydantic_core import PydanticCustomError

from duetune.errors import InvalidInput
from duetune.jobs.spec.conversion_notes import one_line
from duetune.jobs.spec.training_names import UNSUPPORTED

if TYPE_CHECKING:
    from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema, ErrorDetails

    Path = tuple[str, ...]


REFUSED = "refused"
HIDDEN = "hidden"


class Meaning(msgspec.Struct, frozen=True):
    """The meaning of one field, for the schema, the reference page and errors.

    - ``says`` is a sentence about what the value does.
    - ``allowed`` completes the sentence "expected ...".
    """

    says: str
    allowed: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add both texts to the field's JSON schema; pydantic calls it."""
        described = handler(schema)
        described["description"] = f"{self.says} Expected: {self.allowed}."
        return described


def refusal(allowed: str, field: str = "") -> PydanticCustomError:
    """Return the error that a parser raises when it refuses a value.

    ``allowed`` completes "expected ...". ``field`` is a path below the value; validators that
    compare several fields use it to name the wrong one.
    """
    return PydanticCustomError(REFUSED, "{allowed}", {"allowed": allowed, "field": field})


def hidden_refusal(allowed: str) -> PydanticCustomError:
    """Return the same error for a secret value, which messages must never show."""
    return PydanticCustomError(HIDDEN, "{allowed}", {"allowed": allowed, "field": ""})


_MOST_NAMED = 8


class SpecProblem(msgspec.Struct, frozen=True):
    """One wrong field: its path, the value given (stars for a secret) and what is allowed."""

    path: Path
    value: object
    allowed: str

    @property
    def field(self) -> str:
        """The full name of the field, such as ``training.max_steps``."""
        return ".".join(self.path) or "spec"

    @property
    def title(self) -> str:
        """What the message starts with: the field, or for an unknown field its section."""
        if isinstance(self.value, UnknownName):
            return ".".join(self.path[:-1]) + " field" if self.path[1:] else "field"
        return self.field


class InvalidSpec(InvalidInput):
    """All problems of one spec as one error: the first in full, the others by field name.

    ``where`` is put in front of the message, such as ``job.yaml:7 ``.
    """

    def __init__(self, problems: tuple[SpecProblem, ...], where: str = "") -> None:
        self.problems = problems
        first, others = problems[0], problems[1:]
        named = [one_line(problem.field)[:80] for problem in others[:_MOST_NAMED]]
        if len(others) > _MOST_NAMED:
            named.append(f"and {len(others) - _MOST_NAMED} more")
        also = f"; also wrong: {', '.join(named)}" if named else ""
        super().__init__(where + first.title, first.value, first.allowed + also)


class UnknownName(str):
    """The name of a field that does not exist; it is shown in place of a value."""

    __slots__ = ()


class Stars:
    """Is shown in messages in place of a secret value."""

    def __repr__(self) -> str:
        return "***"


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[SpecProblem, ...]:
    """Return the problems behind a pydantic error, in the order of the fields.

    If one field has several problems, only the first is returned.
    """
    found: dict[Path, SpecProblem] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "default_factory_not_called":
            continue  # pydantic adds it when another field is wrong.
        problem = _problem(details, model)
        found.setdefault(problem.path, problem)
    return tuple(found.values())


def _problem(details: ErrorDetails, model: type[BaseModel]) -> SpecProblem:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    path, owner, meaning = _field(details["loc"], model)
    if kind == "extra_forbidden":
        return _unknown(path, owner)
    if kind in {REFUSED, HIDDEN}:
        below = tuple(part for part in str(context["field"]).split(".") if part)
        value = Stars() if kind == HIDDEN else _at(given, below)
        return SpecProblem(path + below, value, str(context["allowed"]))
    return SpecProblem(path, None if kind == "missing" else given, _allowed(meaning, details))


def _field(
    location: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[Path, type[BaseModel], Meaning | None]:
    """Return the path of field names, the model that has the field, and its meaning.

    pydantic appends parts of its own, such as the branch of a union; these are dropped.
    """
    path: Path = ()
    meaning: Meaning | None = None
    for part in location:
        known = model.model_fields.get(str(part))
        if known is None:
            return (path if path and meaning else (*path, str(part))), model, meaning
        path = (*path, str(part))
        inner = known.annotation
        meaning = next((each for each in known.metadata if isinstance(each, Meaning)), None)
        if not (isinstance(inner, type) and hasattr(inner, "model_fields")):
            return path, model, meaning
        model, meaning = inner, None if part != location[-1] else meaning
    return path, model, meaning


def _unknown(path: Path, owner: type[BaseModel]) -> SpecProblem:
    known, name = list(owner.model_fields), path[-1]
    if name in UNSUPPORTED and path[:-1] == ("training",):
        allowed = f"a supported field; {UNSUPPORTED[name]}"
    elif close := difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6):
        allowed = f"a known field; did you mean {close[0]}?"
    else:
        allowed = f"one of {', '.join(known)}"
    return SpecProblem(path, UnknownName(name), allowed)


def _allowed(meaning: Meaning | None, details: ErrorDetails) -> str:
    if meaning is not None:
        return meaning.allowed
    return "a mapping of fields" if "model" in details["type"] else details["msg"]


def _at(value: object, path: Path) -> object:
    """Return the value at ``path`` below a mapping or object; None where there is none."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return value
