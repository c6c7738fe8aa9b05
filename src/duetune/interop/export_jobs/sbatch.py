"""Export a job as a batch script for Slurm."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from duetune.interop.export_jobs.script import install_command, run_script, shell_path

if TYPE_CHECKING:
    from datetime import timedelta

    from duetune.interop.export_jobs.machines import Machines
    from duetune.interop.export_jobs.writing import Notes
    from duetune.jobs.spec.job_spec import JobSpec

# Seconds before the end of its time at which a job is told to save and exit.
NOTICE_S = 120


def to_sbatch(spec: JobSpec, machines: Machines, notes: Notes) -> str:
    """Return the script, and add notes on what Slurm does differently.

    Slurm requeues a preempted job. A job whose time is up saves a checkpoint and ends.
    """
    kind = "" if machines.accelerator is None else f"{machines.accelerator.lower()}:"
    options = [
        f"--job-name={spec.name}",
        f"--nodes={machines.count}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{kind}{machines.gpus}",
        "--requeue",
        f"--signal=B:TERM@{NOTICE_S}",
        "--open-mode=append",
        "--output=%x-%j.log",
    ]
    if spec.max_duration is not None:
        options.append(f"--time={slurm_time(spec.max_duration)}")
    else:
        notes.add("max_duration", "not given: the time limit of the partition applies; add --time")
    for name in [*spec.secrets, *(name for name, value in spec.envs.items() if value is None)]:
        notes.add(name, "read from the environment in which you call sbatch")
    if kind:
        notes.add("resources.accelerators", f"{kind[:-1]} must be the cluster's name of the GPU")
    if spec.run is None:
        notes.add("setup", f"the environment needs duetune: {install_command(spec)}")
    for tag, text in spec.tags.items():
        notes.add("tags", f"{tag} {text}".rstrip() + " is not exported")
    notes.launch(f"sbatch {notes.file}")
    header = "".join(f"#SBATCH {option}\n" for option in options)
    return header + "\n" + _body(spec, machines)


def slurm_time(duration: timedelta) -> str:
    """Return days-hours:minutes:seconds, rounded up to the second."""
    minutes, seconds = divmod(math.ceil(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def _body(spec: JobSpec, machines: Machines) -> str:
    """Return the shell commands below the options."""
    lines: list[str] = []
    for name, value in (dict.fromkeys(spec.secrets) | spec.envs).items():
        if value is None:
            lines.append(f': "${{{name}:?set it where you call sbatch}}"')
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    if spec.workdir is not None:
        lines.append(f"cd -- {shell_path(spec.workdir)} || exit 1")
    script = run_script(spec, machines.gpus)
    if spec.run is None:
        return "\n".join((*lines, script))
    inner = f"{spec.setup.rstrip()}\n{script}" if spec.setup is not None else script
    # Slurm signals only this shell, which passes the signal on and then waits again.
    lines += [
        f"srun bash -c {shlex.quote(inner)} &",
        "step=$!",
        "trap 'kill -TERM \"$step\"' TERM",
        'wait "$step"; status=$?',
        'while kill -0 "$step" 2>/dev/null; do wait "$step"; status=$?; done',
        'exit "$status"',
    ]
    return "\n".join((*lines, ""))
