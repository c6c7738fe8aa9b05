"""The dataset of a job: its size, and how its rows fit into ``max_length``, from a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.jobs.spec.values import is_path
from duetune.training.dataset_rows import CHARACTERS_PER_TOKEN, TEXT_FIELD, check_dataset
from duetune.training.tokenizer_file import file_tokenizer
from duetune.training.tokens import LossRules, tokenized

if TYPE_CHECKING:
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.training.dataset_rows import DataRow, DatasetSummary
    from duetune.training.task import TrainingTask

MOST_CHARACTERS = 4_000_000
"""At most this much of the sample is tokenized, so that a plan of long texts stays quick."""

_ENDLESS = 1 << 30


class DataCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of a dataset fit into ``max_length`` tokens.

    ``sampled`` of ``rows`` were looked at: ``cut`` of them are longer than ``max_length``,
    ``dropped`` have nothing to learn within it, and ``longest`` is the most tokens of one row.
    ``exact`` is false if tokens were estimated from characters.
    """

    rows: int
    sampled: int
    cut: int
    dropped: int
    longest: int
    exact: bool


def local_dataset(spec: JobSpec) -> DatasetSummary | None:
    """Return a summary of the dataset; None if it is not on this machine or not ours to read."""
    return None if spec.run is not None else _summary(spec, spec.dataset)


def eval_dataset_rows(spec: JobSpec) -> int | None:
    """Return the size of the dataset for evaluation; None if it is not on this machine."""
    found = None if spec.run is not None else _summary(spec, spec.training.eval_dataset)
    return None if found is None else found.rows


def _summary(spec: JobSpec, place: str | None) -> DatasetSummary | None:
    if place is None or not is_path(place) or not Path(place).exists():
        return None
    return check_dataset(place, text_field=spec.training.dataset_text_field or TEXT_FIELD)


def check_rows(summary: DatasetSummary, folder: Path | None, task: TrainingTask) -> DataCheck:
    """Return how the sampled rows fit into ``max_length`` of the task, counted by the tokenizer in
    ``folder`` or else estimated from their characters.
    """
    max_length = task.max_length
    sample: list[DataRow] = []
    characters = 0
    for row in summary.sample:
        if sample and characters + row.characters > MOST_CHARACTERS:
            break
        sample.append(row)
        characters += row.characters
    tokenizer = None if folder is None else file_tokenizer(folder, task)
    if tokenizer is None:
        lengths = [round(row.characters / CHARACTERS_PER_TOKEN) for row in sample]
        return DataCheck(
            rows=summary.rows,
            sampled=len(sample),
            cut=sum(length > max_length for length in lengths),
            dropped=0,
            longest=max(lengths),
            exact=False,
        )
    whole = tokenized(sample, tokenizer, _ENDLESS, LossRules.of(task))
    rows = [whole.row(index) for index in range(len(whole))]
    kept = sum(bool(counts[1:max_length].any()) for _, counts in rows)
    return DataCheck(
        rows=summary.rows,
        sampled=len(sample),
        cut=sum(len(ids) > max_length and bool(counts[1:max_length].any()) for ids, counts in rows),
        dropped=len(sample) - kept,
        longest=max(len(ids) for ids, _ in rows),
        exact=True,
    )
