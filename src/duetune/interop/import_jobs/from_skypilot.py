"""Import SkyPilot task files as jobs with the user's own command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from duetune.core.job import NAME
from duetune.interop.import_jobs.foreign_file import masked, truth, variables
from duetune.jobs.spec.conversion_notes import OWN_LINES

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_OWN = re.compile(rf"{OWN_LINES[0]}\n.*?\n{OWN_LINES[1]}\n", re.DOTALL)
_PLANNED = "duetune plans where a job runs"
_MOUNTS = "put what it mounts into workdir, or fetch it in setup"
_REASONS = {
    "file_mounts": _MOUNTS,
    "volumes": _MOUNTS,
    "config": _PLANNED,
    "resources.infra": _PLANNED,
    "resources.cloud": _PLANNED,
    "resources.region": _PLANNED,
    "resources.zone": _PLANNED,
    "resources.job_recovery": "duetune always recovers a job",
    "resources.autostop": "duetune releases GPUs as soon as they are not needed",
}


def from_skypilot(source: ForeignFile) -> dict[str, object]:
    """Return the spec fields of a SkyPilot task; refuses services."""
    if "service" in source:
        raise source.wrong("service", "a service", "a job that ends: duetune does not run services")
    run = source.text("run")
    if run is None or not run.strip():
        raise source.wrong("run", run, "the command that trains")
    fields: dict[str, object] = {}
    name = source.text("name")
    if name is not None and re.fullmatch(NAME, name):
        fields["name"] = name
    elif name is not None:
        source.note("name", f"{name!r} is not imported: letters, digits, '.', '_', '-' only")
    nodes = source.whole("num_nodes") or 1
    if nodes > 1:
        source.note("num_nodes", f"{nodes} is not imported: your own command runs on one node here")
    if "SKYPILOT_" in run:
        source.note("run", "SKYPILOT_* variables are not set here")
    resources, labels, priority = _resources(source)
    if resources:
        fields["resources"] = resources
    workdir = source.take("workdir")
    if isinstance(workdir, str):
        fields["workdir"] = workdir
    elif workdir is not None:
        source.note("workdir", "a repository; fetch it in setup")
    setup = source.text("setup")
    if setup is not None and setup.strip():
        fields["setup"] = setup
    fields["run"] = _OWN.sub("", run, count=1) or run
    fields |= variables(source, source.mapping("envs"), list(source.mapping("secrets")))
    if labels:
        fields["tags"] = labels
    if priority is not None:
        fields["priority"] = priority
    source.leftover(_REASONS)
    return fields


def _resources(
    source: ForeignFile,
) -> tuple[dict[str, object], dict[str, object], int | None]:
    """Return the section ``resources``, the labels and the priority of a task."""
    given = {key: value for key, value in source.mapping("resources").items() if value is not None}
    wanted: dict[str, object] = {}
    accelerators = given.pop("accelerators", given.pop("gpus", None))
    spot = {_use_spot(source, given, None)}
    for kind in ("any_of", "ordered"):
        choices = given.pop(kind, None)
        if choices is None:
            continue
        if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
            raise source.wrong(f"resources.{kind}", choices, "a list of resources")
        kinds = [each.pop("accelerators", None) for each in choices]
        accelerators = accelerators or [each for each in kinds if each is not None] or None
        spot = {_use_spot(source, each, next(iter(spot))) for each in choices}
        rest = [each for each in choices if each]
        if rest:
            words = "; ".join(", ".join(f"{key} {each[key]}" for key in each) for each in rest)
            source.note(f"resources.{kind}", f"{words} is not imported")
    chosen = _accelerators(source, accelerators)
    if chosen is not None:
        wanted["accelerators"] = chosen
    if spot == {True}:
        wanted["spot"] = "only"
    elif spot == {False}:
        wanted["spot"] = "never"
    elif spot == {None}:
        source.note(
            "resources.use_spot", "not given: spot and on-demand are mixed here; see resources.spot"
        )
    labels = given.pop("labels", {})
    priority = given.pop("priority", None)
    if not isinstance(labels, dict):
        raise source.wrong("resources.labels", labels, "a mapping")
    for key, value in given.items():
        reason = _REASONS.get(f"resources.{key}")
        says = f"{masked(key, value)} is not imported"
        source.note(f"resources.{key}", says + (f"; {reason}" if reason else ""))
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise source.wrong("resources.priority", priority, "a whole number")
    return wanted, labels, priority


def _use_spot(source: ForeignFile, given: dict[str, object], default: bool | None) -> bool | None:
    """Take ``use_spot`` from a mapping; ``default`` if it is not there."""
    value = truth(given.pop("use_spot", None))
    if value is None:
        return default
    if not isinstance(value, bool):
        raise source.wrong("resources.use_spot", value, "true or false")
    return value


def _accelerators(source: ForeignFile, value: object) -> str | None:
    """Return one GPU of the first kind: a job with its own command runs on one GPU."""
    if value is None:
        return None
    kinds: list[tuple[str, object]] = []
    for each in value if isinstance(value, list) else [value]:
        pairs = each.items() if isinstance(each, dict) else [(each, None)]
        kinds += [_kind(source, name, count) for name, count in pairs]
    name, count = kinds[0]
    for other, number in dict.fromkeys(kinds):
        if (other, number) != (name, count):
            source.note(
                "resources.accelerators",
                f"{other}:{number} is not imported: a job has one kind of GPU",
            )
    if count != 1:
        source.note(
            "resources.accelerators",
            f"{name}:{count} becomes {name}:1: your own command runs on one GPU here",
        )
    return f"{name}:1"


def _kind(source: ForeignFile, name: object, count: object) -> tuple[str, object]:
    """Return the name and the number of one kind of GPU."""
    if isinstance(name, str) and count is None:
        name, _, number = name.partition(":")
        count = number.strip() or 1
    try:
        whole = float(str(count))
    except ValueError:
        whole = 0.0
    if not isinstance(name, str) or not name.strip() or not whole.is_integer() or whole < 1:
        raise source.wrong(
            "resources.accelerators", f"{name}:{count}", "a name and a whole number of GPUs"
        )
    return name.strip(), int(whole)
