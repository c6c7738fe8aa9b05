"""Checks a Slurm cluster and the settings of a fleet on it, without starting a node."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from duetune.errors import FleetError
from duetune.fleets.driver import Finding
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.fleets.slurm.slurm_commands import SlurmCommands
    from duetune.fleets.slurm.slurm_settings import SlurmSettings

PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "sdiag")
SKEW_S = 5.0
"""Clocks that differ by more make notices and charges wrong."""
SHORTEST_MEMORY_S = 60
"""A shorter MinJobAge forgets ended nodes before a controller has looked again."""
SHORTEST_NOTICE_S = 10


def check_cluster(
    settings: SlurmSettings, commands: SlurmCommands, listing: Callable[[], object]
) -> list[Finding]:
    """Return what was checked: commands, controller, partitions, preemption, GPUs, clock.

    What follows from a thing that is missing is not checked.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    found = [Finding("Slurm's commands are here", _missing(missing))]
    if not missing:
        answers = _tried("the controller answers squeue --json", listing)
        found.append(answers)
        if not answers.wrong:
            found += _cluster(settings, commands)
    return found


def _missing(programs: list[str]) -> str:
    return f"missing: {', '.join(programs)}; install the client of Slurm" if programs else ""


def _tried(what: str, call: Callable[[], object]) -> Finding:
    try:
        call()
    except FleetError as error:
        return Finding(what, str(error))
    return Finding(what)


def _cluster(settings: SlurmSettings, commands: SlurmCommands) -> Iterator[Finding]:
    partitions: dict[str, dict[str, str]] = {}
    for name in filter(None, (settings.spot, settings.on_demand)):
        what = f"partition {name} is up"
        try:
            text = commands.run("scontrol", "--oneliner", "show", "partition", name)
        except FleetError as error:
            yield Finding(what, str(error))
            continue
        partitions[name] = dict(re.findall(r"(\S+?)=(\S*)", text))
        state = partitions[name].get("State", "unknown")
        yield Finding(what, "" if state == "UP" else f"its state is {state}")
        if settings.gpus:
            yield _gres(settings.gpus, name, commands)
    config = dict(
        re.findall(r"(?m)^(\S+)\s+= (.*?)\s*$", commands.run("scontrol", "show", "config"))
    )
    if settings.spot in partitions:
        yield _preemption(config, partitions, settings)
    yield _memory(config)
    yield _clock(commands)


def _gres(gres: str, partition: str, commands: SlurmCommands) -> Finding:
    what = f"partition {partition} has {gres}"
    printed = commands.run("sinfo", "--noheader", f"--partition={partition}", "--format=%G")
    offered = sorted(set(printed.split()))
    there = any(re.search(rf"(^|,){re.escape(gres)}:", each) for each in offered)
    return Finding(what, "" if there else f"it has {', '.join(offered)}; see the setting gpus")


def _preemption(
    config: dict[str, str], partitions: dict[str, dict[str, str]], settings: SlurmSettings
) -> Finding:
    """Return whether jobs of the spot partition are preempted, with a notice."""
    spot = partitions[settings.spot]
    on_demand = partitions.get(settings.on_demand, {})
    grace = int(spot.get("GraceTime", "0"))
    kind, mode = config.get("PreemptType", ""), spot.get("PreemptMode", "")
    wrong = ""
    if kind in {"", "(null)", "preempt/none"}:
        wrong = "PreemptType is preempt/none: no job is ever preempted"
    elif kind == "preempt/partition_prio" and {"CANCEL", "REQUEUE"}.isdisjoint(mode.split(",")):
        wrong = f"PreemptMode is {mode}; expected CANCEL or REQUEUE"
    elif kind == "preempt/partition_prio" and on_demand and _tier(on_demand) <= _tier(spot):
        wrong = f"{settings.on_demand} needs a higher PriorityTier than {settings.spot}"
    elif kind == "preempt/partition_prio" and grace < SHORTEST_NOTICE_S:
        wrong = f"GraceTime is {grace} s; a worker needs {SHORTEST_NOTICE_S} s or more to leave"
    return Finding(f"jobs in {settings.spot} are preempted with a notice", wrong)


def _tier(partition: dict[str, str]) -> int:
    return int(partition.get("PriorityTier", "1"))


def _memory(config: dict[str, str]) -> Finding:
    found = re.match(r"\d+", config.get("MinJobAge", ""))
    age = int(found[0]) if found else SHORTEST_MEMORY_S
    wrong = f"MinJobAge is {age} s; expected {SHORTEST_MEMORY_S} s or more"
    return Finding("Slurm remembers ended jobs", wrong if 0 < age < SHORTEST_MEMORY_S else "")


def _clock(commands: SlurmCommands) -> Finding:
    what = "the clocks of this machine and of the controller agree"
    asked_at = wall_now()
    try:
        found = re.search(r"output at .*\((\d+)\)", commands.run("sdiag"))
    except FleetError as error:
        return Finding(what, f"cannot tell: {error}")
    answered_at = wall_now()
    controller = float(found[1]) if found else answered_at
    skew = max(asked_at - controller, controller - answered_at)
    return Finding(what, f"they differ by {skew:.0f} s" if skew > SKEW_S else "")
