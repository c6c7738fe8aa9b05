"""Spaces as YAML files.

    fields:
      model: {role: given}
      gpu_model: {values: [A100-80GB, L40S]}
      num_gpus: {range: [1, 8]}             # 1, 2, 4, 8
      num_nodes: {role: fixed, values: [1]}
    constraints:
      - {expression: num_gpus % num_nodes == 0, meaning: nodes are alike}

``read_space`` reads such a file, or one that is packaged with duetune.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Value
from duetune.knowledge.configurations.configuration_rules import Constraint
from duetune.knowledge.configurations.space import Domain, Role, Space, field_value

_PACKAGED = Path(__file__).parent / "spaces"


class _Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of the file; ``range`` stands for the powers of two from the first number to the
    last.
    """

    role: Role = Role.FREE
    values: tuple[Value, ...] = ()
    range: tuple[int, int] | None = None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fields: dict[str, _Field]
    constraints: tuple[Constraint, ...] = ()
    description: str = ""


@functools.cache
def default_space() -> Space:
    """Return the space that a scheduler chooses from if the user names none."""
    return read_space("default")


def read_space(place: Path | str) -> Space:
    """Return the space of a YAML file, or a packaged one by name: default, poster."""
    path = Path(place)
    packaged = _PACKAGED / f"{place}.yaml"
    if isinstance(place, str) and path.name == place and not path.suffix:
        if not packaged.is_file():
            known = ", ".join(sorted(each.stem for each in _PACKAGED.glob("*.yaml")))
            raise InvalidInput("space", place, f"a file, or one of {known}")
        path = packaged
    document = _document(path)
    return Space(
        {field: _domain(field, each) for field, each in document.fields.items()},
        document.constraints,
    )


def _document(path: Path) -> _Document:
    import yaml  # noqa: PLC0415 - takes a while

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidInput("space", str(path), f"a readable file ({reason})") from None
    try:
        return msgspec.convert(yaml.safe_load(text), _Document)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise InvalidInput("space", str(path), f"YAML ({problem})") from None
    except msgspec.ValidationError as error:
        raise InvalidInput("space", str(path), f"fields and constraints ({error})") from None


def _domain(field: str, each: _Field) -> Domain:
    values = each.values
    if each.range is not None:
        low, high = each.range
        if values or not 1 <= low <= high:
            raise InvalidInput(field, list(each.range), "values, or a range of powers of two")
        powers = tuple(2**power for power in range(low.bit_length() - 1, high.bit_length()))
        values = tuple(power for power in powers if low <= power <= high)
    return Domain(tuple(field_value(field, value) for value in values), each.role)
