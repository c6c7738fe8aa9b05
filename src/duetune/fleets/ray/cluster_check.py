"""What ``duetune fleet check`` finds out about a Ray cluster."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import ray

from duetune.core.fleet import NodeKind
from duetune.fleets.driver import Finding
from duetune.fleets.storage_check import check_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.fleets.ray.cluster_tables import ClusterTables
    from duetune.fleets.ray.ray_settings import RaySettings

PROBE_S = 30.0
"""Seconds that a task may take to start on each kind of machine."""


def findings(
    settings: RaySettings, tables: ClusterTables, join: Callable[[], None]
) -> tuple[Finding, ...]:
    """Return what was checked: the cluster, its machines of both kinds, and duetune on them.

    ``join`` makes this process a driver of the cluster; it raises an error if that fails.
    """
    found = [Finding(f"the head at {settings.address} answers")]
    try:
        join()
    except Exception as error:  # noqa: BLE001 - Ray raises whatever its parts raise
        found.append(Finding("join the cluster", str(error)))
        return tuple(found)
    found.append(Finding(f"join the cluster with Ray {ray.__version__}"))
    needs = settings.needs(1)
    for kind in NodeKind:
        selector = settings.selector(kind)
        machines = [
            machine
            for machine in tables.machines().values()
            if machine.alive
            and selector.items() <= machine.labels.items()
            and all(machine.total.get(name, 0.0) >= amount for name, amount in needs.items())
        ]
        where = " ".join(f"{key}={value}" for key, value in selector.items()) or "any machine"
        what = f"{len(machines)} machines for {kind} nodes ({where}, {_shown(needs)})"
        if machines:
            found += [Finding(what), _prepared(settings, selector)]
        else:
            found.append(Finding(what, "there are none now; only an autoscaler could add some"))
    return tuple(found)


def _prepared(settings: RaySettings, selector: dict[str, str]) -> Finding:
    """Return whether a machine has the same duetune as the controller, and can use the storage."""
    here = version("duetune")
    what = f"duetune {here} on {' '.join(selector.values()) or 'any'} machines"
    if settings.storage:
        what += f", and storage {settings.storage}"
    task = ray.remote(wrong_here).options(
        num_cpus=0,
        max_retries=0,
        label_selector=selector or None,
        runtime_env=settings.runtime_environment(),
    )
    answer = task.remote(here, settings.storage)
    try:
        return Finding(what, ray.get(answer, timeout=PROBE_S))
    except Exception as error:  # noqa: BLE001 - Ray raises whatever its parts raise
        ray.cancel(answer, force=True)
        return Finding(what, str(error).strip().rpartition("\n")[2] or type(error).__name__)


def wrong_here(wanted: str, storage: str) -> str:
    """Return what a machine lacks to run nodes; empty if nothing. Called there, as a task."""
    if version("duetune") != wanted:
        return f"it has duetune {version('duetune')}"
    return check_storage(storage).wrong if storage else ""


def _shown(needs: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
