"""How much is run on which rows, and trials on several processes: fit here, predict there."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.history import History
from duetune.knowledge.observation import RunOutcome
from knowledge_baselines import OURS, OURS_UNFILTERED, SUBJECTS
from knowledge_data import plausible_rows, table, tried_rows, valid_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from knowledge_scoring import Split

    Index = NDArray[np.int64]


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of random splits and repeats; 0 leaves an experiment out."""

    splits: int
    grouped: bool
    folds: int
    sizes: tuple[int, ...]
    random: int
    chosen: int
    transfers: int
    streams: int
    stream_rows: int
    choices: int
    coverage: int


SIZES = (25, 50, 75, 100, 150, 200, 300, 400)
PUBLIC = Scale(
    splits=5,
    grouped=True,
    folds=3,
    sizes=SIZES,
    random=10,
    chosen=5,
    transfers=2,
    streams=3,
    stream_rows=400,
    choices=10,
    coverage=5,
)
# To fit our own table takes three times as long, and it has more rows to be judged on.
OWN = Scale(
    splits=5,
    grouped=True,
    folds=0,
    sizes=(25, 50, 100, 200, 400),
    random=4,
    chosen=2,
    transfers=1,
    streams=2,
    stream_rows=600,
    choices=4,
    coverage=1,
)
QUICK = Scale(
    splits=2,
    grouped=False,
    folds=0,
    sizes=(25, 50, 100, 200),
    random=2,
    chosen=0,
    transfers=0,
    streams=1,
    stream_rows=200,
    choices=1,
    coverage=1,
)


class Population(msgspec.Struct, frozen=True):
    """Rows whose throughput is judged, and which of duetune's models is judged on them."""

    table: str
    label: str
    subject: str
    scale: Scale

    @property
    def rows(self) -> NDArray[np.int64]:
        history = table(self.table)
        return valid_rows(history) if self.subject == OURS_UNFILTERED else plausible_rows(history)

    @property
    def tried(self) -> NDArray[np.int64]:
        """Return the rows including those that ran out of memory."""
        return np.union1d(self.rows, tried_rows(table(self.table)))


ALL_LABEL, PLAUSIBLE_LABEL, OWN_LABEL = "ibm, all rows", "ibm, plausible rows", "own H200"


def populations(*, public: bool, own: bool, quick: bool) -> list[Population]:
    """Return the populations for which there are tables."""
    found = []
    if public:
        scale = QUICK if quick else PUBLIC
        found.append(Population("ibm", ALL_LABEL, OURS_UNFILTERED, scale))
        found.append(Population("ibm", PLAUSIBLE_LABEL, OURS, scale))
    if own:
        found.append(Population("own", OWN_LABEL, OURS, QUICK if quick else OWN))
    return found


Task = TypeVar("Task")
Result = TypeVar("Result")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Part(NamedTuple):
    """Some rows of a table."""

    table: str
    rows: Index


class Trial(NamedTuple):
    """Several subjects on the same rows; those that share a model have it fitted once."""

    subjects: tuple[str, ...]
    train: tuple[Part, ...]
    test: Part


class Said(NamedTuple):
    """Predictions of the test rows, and the truth."""

    likely: NDArray[np.float64]
    tokens_per_s: NDArray[np.float64]
    filled: NDArray[np.float64]
    """The share of the GPU's memory that its peak is believed to take."""

    valid: NDArray[np.bool_]
    measured: NDArray[np.float64]
    memory_gb: NDArray[np.float64]
    used_gb: NDArray[np.float64]
    flagged: NDArray[np.bool_]
    """Whether something about a row was never measured."""

    seconds_to_fit: float

    @property
    def middle(self) -> NDArray[np.float64]:
        return self.tokens_per_s[:, 1]


def run_trial(trial: Trial) -> dict[str, Said]:
    """Fit every subject of a trial and return its predictions."""
    history = History(each for part in trial.train for each in table(part.table).take(part.rows))
    test = table(trial.test.table).take(trial.test.rows)
    capacity = Described(test.configurations).capacity
    answers = {}
    for subject in trial.subjects:
        began = time.perf_counter()
        estimate = SUBJECTS[subject](history)
        seconds = time.perf_counter() - began
        found = estimate(test.configurations)
        answers[subject] = Said(
            likely=np.array(found.p_valid),
            tokens_per_s=np.array(found.tokens_per_s),
            filled=found.memory_gb[:, 1] * 1e9 / capacity,
            valid=np.array(test.outcome == RunOutcome.VALID),
            measured=np.array(test.tokens_per_s),
            memory_gb=np.array(found.memory_gb),
            used_gb=np.array(
                [each.needed_memory_gb or each.peak_memory_gb or np.nan for each in test]
            ),
            flagged=found.extrapolated.any(axis=1),
            seconds_to_fit=seconds,
        )
    return answers


def trials(subjects: tuple[str, ...], name: str, splits: Sequence[Split]) -> list[Trial]:
    """Return one trial per split."""
    return [Trial(subjects, (Part(name, split.train),), Part(name, split.test)) for split in splits]


def by_subject(answers: Sequence[dict[str, Said]]) -> dict[str, list[Said]]:
    """Return the predictions grouped by subject."""
    return {subject: [each[subject] for each in answers] for subject in answers[0]}


class Workers:
    """A pool of processes with one thread each, so that they do not compete for cores."""

    def __init__(self, count: int | None = None) -> None:
        for name in THREADS:
            os.environ.setdefault(name, "1")
        self._pool = ProcessPoolExecutor(
            count or os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
        )

    def map(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], label: str
    ) -> list[Result]:
        with Progress(console=Console(stderr=True)) as progress:
            return list(
                progress.track(self._pool.map(work, tasks), total=len(tasks), description=label)
            )

    def close(self) -> None:
        self._pool.shutdown()
