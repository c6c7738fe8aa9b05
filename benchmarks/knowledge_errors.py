"""E1 to E3 and coverage: how far configurations differ, and how wrong predictions of them are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.observation import RunOutcome
from knowledge_baselines import OURS
from knowledge_data import (
    groups,
    labelled_rows,
    peer_rows,
    plausible_rows,
    table,
    valid_rows,
    without_cap,
)
from knowledge_peers import AUTOCONF, COASTLINE, KAVIER, Unavailable, ask, column
from knowledge_scoring import (
    PaceError,
    Split,
    ValidityError,
    folds,
    group_folds,
    mean_pace_error,
    one_group_out,
    pace_error,
    random_splits,
    validity_error,
)
from knowledge_trials import Part, Trial, by_subject, run_trial, trials

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from knowledge_peers import Answer
    from knowledge_trials import Population, Said, Scale, Workers

    Index = NDArray[np.int64]

SPREADS = {
    "all but model, method and sequence": ("model", "method", "tokens_per_sample"),
    "the same, of one GPU type": ("model", "method", "tokens_per_sample", "gpu_model"),
    "four: GPU type, GPUs, batch, sequence": ("model", "method", "precision", "software"),
}
RANDOM = "random 85/15"
RANDOM_VALIDITY, GROUPED_VALIDITY = "random 80/20, seeds 0 to 4", "groups (model, method, GPU)"
HELD_OUT, IN_SAMPLE, REFIT = "held out", "in-sample", "refit"
REGRESSOR_LIMIT_S, REGRESSOR_SPLITS = 150, 2


class Spread(msgspec.Struct, frozen=True):
    """Fastest over slowest among configurations that share what is not free."""

    table: str
    free: str
    cells: int
    median: float
    largest: float


class PaceLine(msgspec.Struct, frozen=True):
    """The pace errors of one predictor; ``kind`` says whether it had seen the rows."""

    table: str
    split: str
    subject: str
    kind: str
    error: PaceError


class ValidityLine(msgspec.Struct, frozen=True):
    """The validity errors of one predictor on some rows of a split."""

    table: str
    split: str
    subject: str
    kind: str
    rows: str
    error: ValidityError


class Coverage(msgspec.Struct, frozen=True):
    """Coverage of 90% intervals; ``half_width`` is half of high over low, less one."""

    table: str
    group: str
    covered: float
    half_width: float
    answers: int
    rows: int


def spreads(name: str) -> list[Spread]:
    """Return E1 of one table."""
    found = []
    history = table(name)
    for label, rows in (("all", valid_rows(history)), ("plausible", plausible_rows(history))):
        for free, fixed in SPREADS.items():
            group = groups(history, *fixed)[rows]
            pace = history.tokens_per_s[rows]
            cells = [pace[group == each] for each in np.unique(group)]
            ratios = [float(cell.max() / cell.min()) for cell in cells if len(cell) > 1]
            if ratios:
                found.append(
                    Spread(
                        f"{name}, {label} rows",
                        free,
                        len(ratios),
                        float(np.median(ratios)),
                        max(ratios),
                    )
                )
    return found


# Performance


def pace_lines(
    population: Population, subjects: tuple[str, ...], workers: Workers
) -> tuple[list[PaceLine], list[Said]]:
    """Return E3 of one population, and the answers of its own subject in random splits."""
    name, label, rows = population.table, population.label, population.rows
    history = table(name)
    kinds = {RANDOM: random_splits(rows, 0.15, range(population.scale.splits))}
    if population.scale.grouped:
        kinds["one model left out"] = one_group_out(rows, groups(history, "model"))
        kinds["groups (model, method, GPU)"] = group_folds(
            rows, groups(history, "model", "method", "gpu_model"), 5, range(1)
        )
    if population.scale.grouped and name == "own":
        kinds["groups (all but memory cap)"] = group_folds(rows, without_cap(history), 7, range(1))
    lines, kept = [], []
    for split, splits in kinds.items():
        answers = workers.map(run_trial, trials(subjects, name, splits), f"E3, {label}: {split}")
        for subject, said in by_subject(answers).items():
            errors = [pace_error(each.measured, each.middle) for each in said]
            error = mean_pace_error(errors) if split == RANDOM else _pooled_pace(said)
            lines.append(PaceLine(label, split, subject, HELD_OUT, error))
            if subject == population.subject and split == RANDOM:
                kept = said
    return lines, kept


def _pooled_pace(said: list[Said]) -> PaceError:
    return pace_error(
        np.concatenate([each.measured for each in said]),
        np.concatenate([each.middle for each in said]),
    )


class PeerNotes(msgspec.Struct):
    """Which peers could not be run and why, and how long training took."""

    unavailable: dict[str, str] = {}
    seconds_to_fit: dict[str, float] = {}


def peer_pace_lines(population: Population, notes: PeerNotes, *, install: bool) -> list[PaceLine]:
    """Return E3 of the peers on IBM's table: as shipped, when they have seen the rows, and trained
    on the same rows as duetune.
    """
    history = table("ibm")
    splits = random_splits(population.rows, 0.15, range(population.scale.splits))
    train = [split.train.tolist() for split in splits]
    both = {"rows": peer_rows("ibm"), "splits": train}
    regressor = {
        "rows": peer_rows("ibm"),
        "task": "throughput",
        "splits": train[:REGRESSOR_SPLITS],
        "time_limit": REGRESSOR_LIMIT_S,
    }
    lines = []
    for peer, question in ((KAVIER, both), (COASTLINE, both), (AUTOCONF, regressor)):
        try:
            answer = ask(peer, question, install=install)
            lines += _peer_lines(answer, splits, history.tokens_per_s, notes)
        except Unavailable as reason:
            notes.unavailable[peer.name] = str(reason)
    return lines


def _peer_lines(
    answer: Answer, splits: list[Split], measured: NDArray[np.float64], notes: PeerNotes
) -> list[PaceLine]:
    lines = []
    for name, values in answer.shipped.items():
        said = column(values)
        errors = [pace_error(measured[split.test], said[split.test]) for split in splits]
        lines.append(_peer_line(name, IN_SAMPLE, errors))
    for name, each in answer.refit.items():
        errors = [
            pace_error(measured[split.test], column(values)[split.test])
            for split, values in zip(splits, each, strict=False)
        ]
        lines.append(_peer_line(name, REFIT, errors))
    notes.unavailable.update(answer.unavailable)
    notes.seconds_to_fit.update(answer.seconds_to_fit)
    return lines


def _peer_line(name: str, kind: str, errors: list[PaceError]) -> PaceLine:
    return PaceLine("ibm, all rows", RANDOM, name, kind, mean_pace_error(errors))


# Validity


def validity_splits(name: str, scale: Scale) -> dict[str, list[Split]]:
    """Return the kinds of split on which validity is judged."""
    history = table(name)
    rows = labelled_rows(history)
    kinds = {RANDOM_VALIDITY: random_splits(rows, 0.2, range(scale.splits))}
    if scale.folds:
        kinds[f"random, 5 folds, {scale.folds} times"] = folds(rows, 5, range(scale.folds))
    if scale.grouped:
        kinds["one model left out"] = one_group_out(rows, groups(history, "model"))
    kinds[GROUPED_VALIDITY] = group_folds(
        rows, groups(history, "model", "method", "gpu_model"), 5, range(1)
    )
    if name == "own":
        kinds["groups (all but memory cap)"] = group_folds(rows, without_cap(history), 5, range(1))
    return kinds


def validity_lines(
    name: str, scale: Scale, subjects: tuple[str, ...], workers: Workers
) -> tuple[list[ValidityLine], dict[str, list[Said]]]:
    """Return E2 of one table, and duetune's answers by kind of split."""
    lines, kept = [], {}
    for split, splits in validity_splits(name, scale).items():
        asked = subjects if "5 folds" not in split else (OURS,)
        tasks = [
            Trial(asked, (Part(name, each.train), *_known(name, each)), Part(name, each.test))
            for each in splits
        ]
        answers = workers.map(run_trial, tasks, f"E2, {name}: {split}")
        for subject, said in by_subject(answers).items():
            likely = np.concatenate([each.likely for each in said])
            lines += _validity(name, split, subject, HELD_OUT, splits, likely)
            if subject == OURS:
                kept[split] = said
    return lines, kept


def _known(name: str, split: Split) -> tuple[Part, ...]:
    """Return the other public tables to learn from, without any held-out model."""
    if name != "sample":
        return ()
    mine = table(name)
    trained = {_plain(mine[row].configuration.model) for row in split.train.tolist()}
    judged = {_plain(mine[row].configuration.model) for row in split.test.tolist()}
    hidden = judged - trained
    parts = []
    for other in ("ibm", "fms"):
        rows = [
            row
            for row, each in enumerate(table(other))
            if _plain(each.configuration.model) not in hidden
        ]
        parts.append(Part(other, np.array(rows, np.int64)))
    return tuple(parts)


def _plain(model: str) -> str:
    return model.rsplit("/", 1)[-1].casefold()


def _validity(
    name: str,
    split: str,
    subject: str,
    kind: str,
    splits: list[Split],
    likely: NDArray[np.float64],
) -> list[ValidityLine]:
    history = table(name)
    test = np.concatenate([each.test for each in splits])
    valid = history.outcome[test] == RunOutcome.VALID
    passing = broken(history.configurations)[test] < 0
    lines = []
    for rows, mask in (("all", np.ones(len(test), np.bool_)), ("rule-passing", passing)):
        error = validity_error(valid[mask], likely[mask])
        lines.append(ValidityLine(name, split, subject, kind, rows, error))
    return lines


def peer_validity_lines(scale: Scale, notes: PeerNotes, *, install: bool) -> list[ValidityLine]:
    """Return E2 of the peers on the sample of LLMFineTuningBench."""
    kinds = validity_splits("sample", scale)
    lines: list[ValidityLine] = []
    try:
        question: dict[str, object] = {"rows": peer_rows("sample"), "models": [], "validity": True}
        answer = ask(COASTLINE, question, install=install)
        notes.unavailable.update(answer.unavailable)
        for name, values in answer.shipped.items():
            for split, splits in kinds.items():
                likely = np.concatenate([column(values)[each.test] for each in splits])
                lines += _validity("sample", split, name, IN_SAMPLE, splits, likely)
    except Unavailable as reason:
        notes.unavailable[COASTLINE.name] = str(reason)
    try:
        lines += _refit_validity(kinds, notes, install=install)
    except Unavailable as reason:
        notes.unavailable[AUTOCONF.name] = str(reason)
    return lines


def _refit_validity(
    kinds: dict[str, list[Split]], notes: PeerNotes, *, install: bool
) -> list[ValidityLine]:
    """Train AutoConf on the same rows as duetune, the other public tables included."""
    tables = ("sample", "ibm", "fms")
    starts = dict(zip(tables, np.cumsum([0, *(len(table(each)) for each in tables)]), strict=False))
    rows = [row for each in tables for row in peer_rows(each)]
    asked = {kind: splits for kind, splits in kinds.items() if "5 folds" not in kind}
    train = [
        [
            int(starts[part.table] + row)
            for part in (Part("sample", each.train), *_known("sample", each))
            for row in part.rows.tolist()
            if table(part.table)[row].outcome
            in {RunOutcome.VALID, RunOutcome.OOM, RunOutcome.REJECTED}
        ]
        for splits in asked.values()
        for each in splits
    ]
    answer = ask(AUTOCONF, {"rows": rows, "splits": train, "task": "validity"}, install=install)
    notes.unavailable.update(answer.unavailable)
    notes.seconds_to_fit.update(
        {f"{name}, validity": seconds for name, seconds in answer.seconds_to_fit.items()}
    )
    lines = []
    for name, refits in answer.refit.items():
        left = iter(refits)
        for kind, splits in asked.items():
            likely = np.concatenate([column(next(left))[each.test] for each in splits])
            lines += _validity("sample", kind, name, REFIT, splits, likely)
    return lines


# Intervals


def coverages(population: Population, workers: Workers) -> list[Coverage]:
    """Return coverage in total and by GPU type.

    Seven folds hold out as much as an 85/15 split and judge every row equally often.
    """
    name, label, subject = population.table, population.label, population.subject
    splits = folds(population.rows, 7, range(population.scale.coverage))
    answers = workers.map(run_trial, trials((subject,), name, splits), f"intervals, {label}")
    said = by_subject(answers)[subject]
    test = np.concatenate([each.test for each in splits])
    gpu = groups(table(name), "gpu_model")[test]
    measured = np.concatenate([each.measured for each in said])
    pace = np.concatenate([each.tokens_per_s for each in said])
    inside = (measured >= pace[:, 0]) & (measured <= pace[:, 2])
    half = np.sqrt(pace[:, 2] / pace[:, 0]) - 1.0
    found = []
    for group in ("total", *np.unique(gpu).tolist()):
        mine = np.ones(len(test), np.bool_) if group == "total" else gpu == group
        found.append(
            Coverage(
                table=label,
                group=group,
                covered=float(inside[mine].mean()),
                half_width=float(np.median(half[mine])),
                answers=int(mine.sum()),
                rows=len(np.unique(test[mine])),
            )
        )
    return found
