"""Checks before a job is paid for: hub access, LoRA layers, lengths, chat template, trackers, disk.

``prepare`` calls ``preflight`` for ``plan`` and ``launch`` alike. What would certainly fail becomes
a finding that ``launch`` refuses; the rest are warnings. Data and tokens are read with the
trainer's own code.
"""

from __future__ import annotations

import importlib.util
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput, MissingExtra
from duetune.jobs.data_check import DataCheck, check_rows
from duetune.jobs.disk_space import FETCHED_BYTES, DiskNeed, disks, needed_space, size_words
from duetune.jobs.hub import Access, Repo, RepoKind, hub_cache, look_up
from duetune.jobs.spec.values import is_path
from duetune.knowledge.facts.weight_files import tensor_shapes
from duetune.training.dataset_rows import RowKind
from duetune.training.task import EvalStrategy, Tracker, TrainingMethod
from duetune.training.tokenizer_file import chat_template, has_tokenizer
from duetune.training.tokens import plain_form
from duetune.training.tracking import check_trackers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.knowledge.facts.model_facts import ModelFacts
    from duetune.training.dataset_rows import DatasetSummary
    from duetune.training.task import TrainingTask

_HUB = "a folder, or a name on the Hugging Face hub that can be fetched"
_ASK_FOR_IT = "; accept its terms on the hub and list HF_TOKEN under secrets"


class Severity(StrEnum):
    """REFUSED findings stop ``launch``; a WARNING is only shown."""

    REFUSED = "refused"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with a job: the field, its value, and what is expected or follows."""

    severity: Severity
    field: str
    value: str
    says: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value}: {self.says}"


class Machine(msgspec.Struct, frozen=True):
    """Where jobs are kept and run: ``jobs`` is the folder of all jobs.

    ``own`` says that the nodes run on this machine, with its files, disk, cache and network.
    """

    jobs: Path
    own: bool = True


class Preflight(msgspec.Struct, frozen=True):
    """The findings about a job, and how its data fit; None if the data are not on this machine."""

    findings: tuple[Finding, ...] = ()
    data: DataCheck | None = None

    def refuse(self) -> None:
        """Refuse a job that would certainly fail. ``launch`` calls it before anything is spent."""
        bad = [each for each in self.findings if each.severity is Severity.REFUSED]
        if bad:
            more = f"; 'duetune plan' lists {len(bad) - 1} more" if bad[1:] else ""
            raise InvalidInput(bad[0].field, bad[0].value, bad[0].says + more)


def preflight(
    spec: JobSpec,
    plan: TrainingPlan,
    task: TrainingTask | None,
    facts: ModelFacts | None,
    summary: DatasetSummary | None,
    repos: Sequence[Repo],
    machine: Machine,
    environ: Mapping[str, str],
) -> Preflight:
    """Return what is wrong with a planned job. ``task`` is None for a user's own command.

    ``environ`` is the environment of the job's workers; ``summary`` is None for data on the hub,
    and ``repos`` are what ``hub_repos`` returns.
    """
    if task is None:
        return Preflight(tuple(_ignored(spec)))
    folder = Path(task.model) if is_path(task.model) else repos[0].folder
    if not machine.own and folder is not None and not folder.is_dir():
        folder = None
    try:
        data = None if summary is None else check_rows(summary, folder, task)
    except InvalidInput as error:
        return Preflight((_refused("dataset", task.dataset, error.allowed),))
    findings = (
        *_elsewhere(task, machine),
        *_access(repos, machine),
        *_packages(task, machine),
        *([] if folder is None else _model_files(folder, task, summary)),
        *_rows(data, task),
        *_positions(data, task, facts),
        *_tracking(task, machine, environ),
        *_disk(spec, plan, facts, repos, machine, environ),
    )
    return Preflight(findings, data)


def _refused(field: str, value: object, says: str) -> Finding:
    return Finding(Severity.REFUSED, field, str(value), says)


def _warning(field: str, value: object, says: str) -> Finding:
    return Finding(Severity.WARNING, field, str(value), says)


def _ignored(spec: JobSpec) -> Iterator[Finding]:
    """Say which fields a user's own command is not told of."""
    for field, value in (("model", spec.model), ("dataset", spec.dataset)):
        if value is not None:
            yield _warning(
                field, value, "ignored: your own command (run) is not told of it; pass it in run"
            )
    if spec.checkpoint.every != "auto":
        yield _warning(
            "checkpoint.every",
            spec.document()["checkpoint"]["every"],  # type: ignore[index]
            "ignored: your own command (run) decides when it saves",
        )


def _elsewhere(task: TrainingTask, machine: Machine) -> Iterator[Finding]:
    """Say which files were not checked, because they are not on this machine."""
    for field, place in (
        ("model", task.model),
        ("dataset", task.dataset),
        ("training.eval_dataset", task.eval_dataset),
    ):
        if not machine.own and place is not None and is_path(place) and not Path(place).exists():
            yield _warning(field, place, "not checked: it is not on this machine")


def hub_repos(spec: JobSpec, environ: Mapping[str, str]) -> list[Repo]:
    """Return what the hub or its cache has of a job for the built-in trainer, the model first."""
    if spec.run is not None:
        return []
    wanted = [
        (kind, place)
        for kind, place in (
            (RepoKind.MODEL, spec.model),
            (RepoKind.DATASET, spec.dataset),
            (RepoKind.DATASET, spec.training.eval_dataset),
        )
        if place is not None and not is_path(place)
    ]
    return look_up(wanted, environ)


def _access(repos: Sequence[Repo], machine: Machine) -> Iterator[Finding]:
    """Find names on the hub that a worker could not load."""
    for repo in repos:
        says = f"{_HUB}; it {repo.access.value}"
        match repo.access:
            case Access.CACHED | Access.REACHABLE:
                pass
            case Access.MISSING | Access.GATED:
                yield _refused(repo.kind, repo.name, says + _ASK_FOR_IT)
            case Access.UNREACHABLE | Access.OFFLINE if machine.own:
                yield _refused(repo.kind, repo.name, says)
            case _:
                yield _warning(repo.kind, repo.name, f"it {repo.access.value}")
        library = importlib.util.find_spec("datasets")
        if repo.kind is RepoKind.DATASET and machine.own and library is None:
            yield _refused(repo.kind, repo.name, "a file or folder: 'datasets' is not installed")


def _model_files(
    folder: Path, task: TrainingTask, summary: DatasetSummary | None
) -> Iterator[Finding]:
    """Find what the files of the model lack: a tokenizer, a chat template, the LoRA layers."""
    if not has_tokenizer(folder):
        yield _refused("model", task.model, "a folder with a tokenizer; this one has no file of it")
    talks = summary is not None and summary.kind in {RowKind.CONVERSATION, RowKind.ANSWER}
    if summary is not None and talks and not (task.chat_template or chat_template(folder)):
        yield _warning("model", task.model, f"no chat template: {plain_form(summary.sample[0])}")
    if task.adapts:
        yield from _layers(folder, task)


def _packages(task: TrainingTask, machine: Machine) -> Iterator[Finding]:
    """Find packages that the trainer needs for a job and that this machine lacks."""
    wanted = {
        f"method {task.method}": task.method is TrainingMethod.QLORA,
        f"optim {task.optim}": "bit" in task.optim,
    }
    for what, needed in wanted.items():
        if needed and machine.own and importlib.util.find_spec("bitsandbytes") is None:
            field, _, value = what.partition(" ")
            yield _refused(field, value, "another one: it needs pip install 'duetune[quantised]'")


def _layers(folder: Path, task: TrainingTask) -> Iterator[Finding]:
    """Find LoRA layers that the model does not have.

    The names of the weights answer this at once in most cases. Only before a refusal the model is
    built without weights, because some models rename their layers when they are loaded.
    """
    chosen = task.lora_target_modules
    if chosen == "all-linear":
        return
    layers = {name.removesuffix(".weight") for name in tensor_shapes(folder)}
    absent = [
        name for name in _patterns(chosen) if not any(_matches(name, each) for each in layers)
    ]
    if layers and not absent:
        return
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("peft") is None:
        return
    from duetune.training.adapters import check_adapter  # noqa: PLC0415 - imports torch

    try:
        check_adapter(msgspec.structs.replace(task, model=str(folder)))
    except InvalidInput as error:
        yield _refused(f"training.{error.field}", _words(chosen), f"{error.allowed}{_some(layers)}")
        return
    if layers and absent:
        field = "training.lora_target_modules"
        yield _warning(field, ", ".join(absent), "no layer of the model has this name")


def _patterns(chosen: str | tuple[str, ...]) -> tuple[str, ...]:
    return (chosen,) if isinstance(chosen, str) else chosen


def _matches(name: str, layer: str) -> bool:
    """Return whether PEFT would adapt a layer: a name matches its end, a pattern all of it."""
    if layer == name or layer.endswith(f".{name}"):
        return True
    try:
        return re.fullmatch(name, layer) is not None
    except re.error:
        return False


def _words(chosen: str | tuple[str, ...]) -> str:
    return ", ".join(_patterns(chosen))


def _some(layers: set[str]) -> str:
    """Return the short names of the layers that LoRA could adapt."""
    names = sorted(
        {each.rsplit(".", 1)[-1] for each in layers if each.endswith(("proj", "fc", "attn"))}
    )
    return f"; it has {', '.join(names[:12])}" if names else ""


def _rows(data: DataCheck | None, task: TrainingTask) -> Iterator[Finding]:
    """Find rows that are cut or dropped."""
    if data is None:
        return
    about = "" if data.exact else ", estimated from their characters"
    of = f"{data.sampled:,} rows" if data.sampled == data.rows else f"{data.sampled:,} sampled rows"
    longest = f"; the longest row has {data.longest:,} tokens{about}"
    if data.dropped == data.sampled == data.rows:
        yield _refused(
            "training.max_length",
            task.max_length,
            f"a larger number: no row has a token to learn within it{longest}",
        )
    elif data.dropped:
        yield _warning(
            "training.max_length",
            task.max_length,
            f"{data.dropped:,} of {of} are dropped: they have no token to learn within it{longest}",
        )
    if data.cut:
        yield _warning(
            "training.max_length",
            task.max_length,
            f"{data.cut:,} of {of} are cut, because they are longer{longest}",
        )


def _positions(
    data: DataCheck | None, task: TrainingTask, facts: ModelFacts | None
) -> Iterator[Finding]:
    """Find rows that are longer than the model's positions."""
    context = None if facts is None else facts.context
    if facts is None or context is None or task.max_length <= context:
        return
    field, allowed = "training.max_length", f"at most {context:,}, the positions of the model"
    if data is None or not data.exact:
        yield _warning(field, task.max_length, f"more than the {context:,} positions of the model")
    elif min(data.longest, task.max_length) > context:
        if facts.learned_positions:
            yield _refused(field, task.max_length, f"{allowed}; rows have up to {data.longest:,}")
        else:
            yield _warning(
                field,
                task.max_length,
                f"more than the {context:,} positions of the model; the longest row has "
                f"{data.longest:,} tokens",
            )


def _tracking(
    task: TrainingTask, machine: Machine, environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Find evaluations without rows, and trackers that would get nothing."""
    if task.eval_strategy is not EvalStrategy.NO and not (task.eval_dataset or task.eval_fraction):
        allowed = "no without rows to evaluate: set eval_fraction above 0 or eval_dataset"
        yield _refused("training.eval_strategy", task.eval_strategy, allowed)
    if not machine.own:
        return
    names = ", ".join(task.report_to)
    try:
        check_trackers(task)
    except MissingExtra as error:
        yield _refused("training.report_to", names, str(error))
        return
    offline = environ.get("WANDB_MODE") in {"offline", "disabled", "dryrun"}
    known = "WANDB_API_KEY" in environ or (Path.home() / ".netrc").exists()
    if Tracker.WANDB in task.report_to and not offline and not known:
        says = "no metrics will get there: list WANDB_API_KEY under secrets, or set WANDB_MODE"
        yield _warning("training.report_to", Tracker.WANDB, says)


def _disk(
    spec: JobSpec,
    plan: TrainingPlan,
    facts: ModelFacts | None,
    repos: Sequence[Repo],
    machine: Machine,
    environ: Mapping[str, str],
) -> Iterator[Finding]:
    """Find disks without room for the checkpoints, the output and what is fetched."""
    if facts is None or not machine.own:
        return
    folder = machine.jobs if spec.checkpoint.dir is None else Path(spec.checkpoint.dir)
    # The best state is kept besides the newest ones.
    keep = spec.checkpoint.keep + bool(spec.training.load_best_model_at_end)
    needs: list[DiskNeed] = [
        *needed_space(plan, facts, checkpoints=folder, keep=keep, output=machine.jobs)
    ]
    if any(each.kind is RepoKind.MODEL and each.access is Access.REACHABLE for each in repos):
        size = FETCHED_BYTES * facts.parameters
        needs.append(DiskNeed(hub_cache(environ), size, size))
    for disk in disks(needs):
        free = size_words(disk.free)
        if disk.least > disk.free:
            yield _refused("disk space", free, f"at least {size_words(disk.least)}; {disk}")
        elif disk.most > disk.free:
            yield _warning("disk space", free, f"not all checkpoints fit; {disk}")


def job_environment(spec: JobSpec) -> dict[str, str]:
    """Return this process's environment with the variables and secrets of the job."""
    secrets = spec.secret_values(os.environ)
    return {
        **os.environ,
        **spec.environment(os.environ),
        **{name: value.get_secret_value() for name, value in secrets.items()},
    }
