"""The file of a fleet that others run: ``fleets/NAME.toml`` in the home.

    engine = "slurm"
    accelerator = "H100"
    on_demand_usd_h = 3.0
    spot_usd_h = 1.2

    [options]                    # what the engine's driver needs to know
    spot = "preemptible"
    on_demand = "guaranteed"

``duetune fleet add`` writes it, and it may be edited by hand. Beside it is a secret token, from
which the names of its nodes and the secrets of its jobs are derived.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import sys
import tomllib
from typing import TYPE_CHECKING

import msgspec

from duetune.conversion import refusal
from duetune.core.job import NAME, NAME_WORDS
from duetune.errors import InvalidInput
from duetune.files import OWNER, make_folder, write_whole
from duetune.storage.storage_url import checked_place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from duetune.settings import Settings

FOLDER = "fleets"
Option = str | int | float | bool | list[str]


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fleet that others run.

    - ``engine``: what runs it: slurm, ray, or a plug-in.
    - ``options``: what the engine's driver needs to know.
    - ``accelerator``, ``memory_gb``: the GPU model and its memory.
    - ``max_gpus``: the most GPUs that a job may hold.
    - ``gpus_per_node``: the engine gives only whole nodes of so many GPUs; by default a node may
      have any number.
    - ``on_demand_usd_h``, ``spot_usd_h``: dollars per GPU-hour.
    - ``spot_gpus``: spot GPUs, for engines that cannot tell how many are free.
    - ``slot_minutes``: how often decisions are made.
    - ``withdraw_minutes``: a request that is not granted in this time is withdrawn.
    - ``lease_minutes``: nodes end if no controller has been there for this long.
    - ``startup_s``, ``resize_s``: expected seconds of a first start and of a resize.
    - ``python``: the Python with duetune on the nodes.
    - ``setup``: shell commands that a node runs first.
    - ``storage``: the path or URL through which nodes get a job's files and report; empty if they
      see the home under the same path.
    """

    engine: str
    options: dict[str, Option] = {}
    accelerator: str | None = None
    memory_gb: float | None = None
    max_gpus: int = 4
    gpus_per_node: int | None = None
    on_demand_usd_h: float = 3.0
    spot_usd_h: float = 1.0
    spot_gpus: int | None = None
    slot_minutes: float = 5.0
    withdraw_minutes: float = 5.0
    lease_minutes: float = 30.0
    startup_s: float = 30.0
    resize_s: float = 5.0
    python: str = sys.executable
    setup: str = ""
    storage: str = ""

    def __post_init__(self) -> None:
        for field in ("slot_minutes", "withdraw_minutes", "lease_minutes", "on_demand_usd_h"):
            _check(field, getattr(self, field), least_is_allowed=False)
        for field in ("spot_usd_h", "startup_s", "resize_s"):
            _check(field, getattr(self, field), least_is_allowed=True)
        if self.max_gpus < 1:
            raise InvalidInput("max_gpus", self.max_gpus, "1 or more")
        if self.spot_gpus is not None and self.spot_gpus < 0:
            raise InvalidInput("spot_gpus", self.spot_gpus, "0 or more")
        node = self.gpus_per_node
        if node is not None:
            if node < 1:
                raise InvalidInput("gpus_per_node", node, "1 or more")
            for field in ("max_gpus", "spot_gpus"):
                count = getattr(self, field)
                if count is not None and count % node:
                    allowed = f"a multiple of {node}, because nodes have {node} GPUs"
                    raise InvalidInput(field, count, allowed)
        if "storage" in self.options:
            allowed = "storage before [options]: it is a field of the fleet's file"
            raise InvalidInput("options.storage", self.options["storage"], allowed)
        if self.storage:
            checked_place(self.storage)


def _check(field: str, number: float, *, least_is_allowed: bool) -> None:
    if not (math.isfinite(number) and (number > 0 or (least_is_allowed and number == 0))):
        allowed = "a number from 0 on" if least_is_allowed else "a number above 0"
        raise InvalidInput(field, number, allowed)


def fleet_files(settings: Settings) -> dict[str, Path]:
    """Return the files of the home's fleets by name, in the order of the names."""
    return {path.stem: path for path in sorted((settings.home / FOLDER).glob("*.toml"))}


def read_fleet(path: Path) -> FleetFile:
    """Return the content of a fleet's file; ``InvalidInput`` names the field that is wrong."""
    raw: object = None
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
        return msgspec.convert(raw, FleetFile)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(path.name, str(path), f"valid TOML ({error})") from None
    except msgspec.ValidationError as error:
        raise refusal(error, raw, FleetFile).at(f"{path.name} ") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path.name} {error.field}", error.value, error.allowed) from None
    except OSError as error:
        raise InvalidInput(path.name, str(path), f"a file ({error.strerror})") from None


def write_fleet(settings: Settings, name: str, fleet: FleetFile) -> Path:
    """Write the file of a new fleet and its token, and return the file."""
    if not re.fullmatch(NAME, name):
        raise InvalidInput("NAME", name, NAME_WORDS)
    folder = settings.home / FOLDER
    make_folder(folder)
    path = folder / f"{name}.toml"
    if path.exists():
        raise InvalidInput("NAME", name, "a name that no fleet has ('duetune fleet list')")
    write_whole(folder / f"{name}.token", secrets.token_hex(32), durable=True, mode=OWNER)
    write_whole(path, _toml(fleet), durable=True, mode=OWNER)
    return path


def token_of(path: Path) -> bytes:
    """Return the secret token of the fleet with this file."""
    file = path.with_suffix(".token")
    try:
        return bytes.fromhex(file.read_text("ascii").strip())
    except (OSError, ValueError) as error:
        allowed = f"the token that 'duetune fleet add' wrote ({error})"
        raise InvalidInput(file.name, str(file), allowed) from None


def prefix_of(token: bytes) -> str:
    """Return the beginning of the names of all nodes of the fleet with this token."""
    return f"dt{hashlib.sha256(b'nodes ' + token).hexdigest()[:6]}"


def _toml(fleet: FleetFile) -> str:
    """Return the fields that differ from their defaults as TOML."""
    fields = {
        field.name: getattr(fleet, field.name)
        for field in msgspec.structs.fields(FleetFile)
        if getattr(fleet, field.name) != field.default and field.name != "options"
    }
    lines = _lines(fields)
    if fleet.options:
        lines += ["", "[options]", *_lines(fleet.options)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Option]) -> list[str]:
    # JSON texts, numbers, truth values and lists are TOML too.
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]
