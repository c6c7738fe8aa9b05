"""The shell script that an exported job runs on each machine."""

from __future__ import annotations

import shlex
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import GPUS
from duetune.jobs.spec.conversion_notes import OWN_LINES
from duetune.jobs.spec.method_choice import MethodChoice
from duetune.jobs.training_settings import task_fields

if TYPE_CHECKING:
    from duetune.jobs.spec.job_spec import JobSpec

# SIGTERM is passed on to every worker, and the script ends when all workers have ended. At the
# signal bash returns from wait, so the script waits again.
_WORKERS = """\
export DUETUNE_COORDINATOR_FILE="$DUETUNE_JOB_DIR/coordinator.address"
rm -f "$DUETUNE_COORDINATOR_FILE"
DUETUNE_JOB_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')"
export DUETUNE_JOB_SECRET
python -m duetune.training.coordinator --address-file "$DUETUNE_COORDINATOR_FILE" &
coordinator=$!
trap 'kill "$coordinator" 2>/dev/null' EXIT
until [ -s "$DUETUNE_COORDINATOR_FILE" ]; do
  kill -0 "$coordinator" || exit 1
  sleep 0.2
done
node="$DUETUNE_NODE_ID"
workers=()
trap 'kill -TERM "${workers[@]}" 2>/dev/null' TERM INT
IFS=, read -ra devices <<< "${CUDA_VISIBLE_DEVICES:-@DEVICES@}"
for ((first = 0; first + @MEMBER@ <= ${#devices[@]}; first += @MEMBER@)); do
  CUDA_VISIBLE_DEVICES="$(IFS=,; echo "${devices[*]:first:@MEMBER@}")" \\
    DUETUNE_NODE_ID="$node-${devices[first]}" python -m duetune.training &
  workers+=("$!")
done
status=0
for worker in "${workers[@]}"; do
  code=0
  wait "$worker" || code=$?
  while kill -0 "$worker" 2>/dev/null; do code=0; wait "$worker" || code=$?; done
  [ "$code" -eq 0 ] || status="$code"
done
exit "$status"
"""


def install_command(spec: JobSpec) -> str:
    """Return the command that installs this version of duetune with what the job needs."""
    quantised = spec.method is MethodChoice.QLORA or "bit" in (spec.training.optim or "")
    fused = spec.training.use_liger_kernel is not False
    extras = f"train{',kernels' * fused}{',quantised' * quantised}"
    package = f"duetune[{extras}]=={metadata.version('duetune')}"
    return f"python -m pip install --quiet {shlex.quote(package)}"


def environment_lines(spec: JobSpec, folder: str = '"$HOME"/duetune') -> str:
    """Return shell lines that set the variables which a duetune node would set.

    If DUETUNE_JOB_DIR is set outside, it is the job's folder. It should outlive the machine.
    """
    name = shlex.quote(spec.name)
    checkpoints = '"$DUETUNE_JOB_DIR"/checkpoints'
    if spec.checkpoint.dir is not None:
        checkpoints = shell_path(spec.checkpoint.dir)
    return "\n".join(
        (
            OWN_LINES[0],
            f"export DUETUNE_JOB_ID={name}",
            f'[ -n "${{DUETUNE_JOB_DIR:-}}" ] || DUETUNE_JOB_DIR={folder}/{name}',
            f"DUETUNE_CHECKPOINT_DIR={checkpoints}",
            'DUETUNE_OUTPUT_DIR="$DUETUNE_JOB_DIR"/output',
            'DUETUNE_PROGRESS_FILE="$DUETUNE_JOB_DIR"/progress.json',
            'DUETUNE_NODE_ID="$(hostname)"',
            # An epoch must only grow from launch to launch, as seconds do.
            'DUETUNE_EPOCH="$(date +%s)"',
            "export DUETUNE_JOB_DIR DUETUNE_CHECKPOINT_DIR DUETUNE_OUTPUT_DIR",
            "export DUETUNE_PROGRESS_FILE DUETUNE_NODE_ID DUETUNE_EPOCH",
            "umask 077",
            'mkdir -p "$DUETUNE_JOB_DIR" "$DUETUNE_CHECKPOINT_DIR" "$DUETUNE_OUTPUT_DIR"',
            OWN_LINES[1],
            "",
        )
    )


def run_script(spec: JobSpec, gpus: int, *, dataset: str | None = None) -> str:
    """Return the user's own command, or one worker of the built-in trainer per member.

    ``dataset`` is where the data is on that machine, if not where the spec says.
    """
    if spec.run is not None:
        return environment_lines(spec) + spec.run
    task = msgspec.json.format(msgspec.json.encode(task_document(spec, dataset))).decode()
    lines = (
        environment_lines(spec)
        + f"cat > \"$DUETUNE_JOB_DIR/task.json\" <<'DUETUNE_TASK'\n{task}\nDUETUNE_TASK\n"
    )
    member = spec.resources.gpus_per_member or 1
    if member > 1:
        lines += f"export {GPUS}={member}\n"
    if gpus == member:
        return lines + "exec python -m duetune.training\n"
    devices = ",".join(map(str, range(gpus)))
    return lines + _WORKERS.replace("@DEVICES@", devices).replace("@MEMBER@", str(member))


def shell_path(path: str) -> str:
    """Return a path quoted for the shell, with ``~`` and relative paths resolved there."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{shlex.quote(path[1:])}' if path[1:] else '"$HOME"'
    return shlex.quote(path) if path.startswith("/") else f'"$PWD"/{shlex.quote(path)}'


def task_document(spec: JobSpec, dataset: str | None = None) -> dict[str, object]:
    """Return the trainer's task file; fields it leaves out get the trainer's defaults."""
    task: dict[str, object] = {"model": spec.model, "dataset": dataset or spec.dataset}
    if spec.method is not MethodChoice.AUTO:
        task["method"] = str(spec.method)
    task |= task_fields(spec)
    if spec.checkpoint.every != "auto":
        task["checkpoint_every_s"] = spec.checkpoint.every.total_seconds()
    return task
