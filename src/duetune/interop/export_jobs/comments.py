"""What the other tool cannot say, as comments at the top of its file."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from duetune.jobs.spec.conversion_notes import Note, one_line
from duetune.jobs.spec.durations import written_deadline, written_duration
from duetune.jobs.spec.job_spec import AUTO, CheckpointSpec

if TYPE_CHECKING:
    from duetune.interop.export_jobs.machines import Machines
    from duetune.jobs.spec.job_spec import JobSpec


class Notes:
    """Collected while a file is made."""

    def __init__(self, file: str) -> None:
        self.file = shlex.quote(file)
        self.all: list[Note] = []
        self.how: list[str] = []

    def add(self, field: str, says: str) -> None:
        self.all.append(Note(field, says))

    def launch(self, command: str) -> None:
        """A line that the user runs, to begin with."""
        self.how.append(command)

    def common(self, spec: JobSpec, machines: Machines, *, has_limit: bool) -> None:
        """What none of the tools knows: deadlines, money, and GPUs that come and go."""
        self.add("deadline", f"{written_deadline(spec.deadline)} is not watched there")
        for field in ("budget", "value", "max_price"):
            amount = getattr(spec, field)
            if amount is not None:
                self.add(field, f"${amount:g} is not watched there")
        if spec.max_duration is not None and not has_limit:
            self.add("max_duration", f"{written_duration(spec.max_duration)} is not watched there")
        if spec.policy != AUTO:
            self.add("policy", f"{spec.policy} decides nothing there")
        if spec.priority:
            self.add("priority", f"{spec.priority} is not carried over")
        if spec.project:
            self.add("project", f"{spec.project} has no quota there")
        _, least, most = spec.gpus
        if most != least:
            self.add(
                "resources.accelerators", f"{machines.total} GPUs for good; --gpus chooses others"
            )
        if spec.checkpoint.keep != CheckpointSpec().keep:
            self.add("checkpoint.keep", f"{spec.checkpoint.keep} is not carried over")
        if spec.run is not None:
            self.add("run", "started once per machine there, not once per GPU")
            if spec.training.max_steps is not None:
                self.add("training.max_steps", "nobody there reads it")

    def comment(self) -> str:
        lines = ["Exported by duetune. To launch:"]
        lines += [f"  {one_line(line)}" for line in self.how]
        if self.all:
            lines.append("Not the same there:")
            lines += [f"  {note}" for note in self.all]
        return "".join(f"# {line}\n" for line in lines)
