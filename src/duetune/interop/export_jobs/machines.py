"""The machines of an exported job: their number, and the GPUs in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from duetune.jobs.spec.job_spec import JobSpec

PER_MACHINE = 8


class Machines(msgspec.Struct, frozen=True):
    """The machines of a job, all with ``gpus`` GPUs. ``accelerator`` None means any GPU."""

    accelerator: str | None
    count: int
    gpus: int

    @property
    def total(self) -> int:
        """GPUs of all machines together."""
        return self.count * self.gpus


def machines_of(spec: JobSpec, gpus: int | None = None) -> Machines:
    """Return the machines for ``gpus`` GPUs; by default the upper end of the spec's range, because
    it is most likely to be on time.

    The built-in trainer forms its group on one machine, so it gets at most one.
    """
    accelerator, least, most = spec.gpus
    if gpus is not None and not least <= gpus <= (gpus if most is None else most):
        upper = "any number" if most is None else most
        raise InvalidInput("--gpus", gpus, f"{least} to {upper}, as in resources.accelerators")
    if spec.run is None and max(gpus or 0, least) > PER_MACHINE:
        allowed = f"at most {PER_MACHINE}: the built-in trainer is exported to one machine"
        field = "resources.accelerators" if gpus is None else "--gpus"
        raise InvalidInput(field, max(gpus or 0, least), allowed)
    wanted = gpus or most or least
    if spec.run is None:
        return Machines(accelerator, 1, min(wanted, PER_MACHINE))
    count = next(
        count
        for count in range(1, wanted + 1)
        if wanted % count == 0 and wanted // count <= PER_MACHINE
    )
    return Machines(accelerator, count, wanted // count)
