"""The page of the results on configuration knowledge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from knowledge_choices import ChoiceLine, Speed
from knowledge_errors import Coverage, PaceLine, PeerNotes, Spread, ValidityLine
from knowledge_learning import (
    PROBES,
    STRATEGIES,
    TARGETS,
    CurvePoint,
    StreamPoint,
    Transfer,
    samples_to_target,
)
from knowledge_texts import E1, E2, E3, E4, E5, E6, INTERVALS, PEERS, STREAM
from reporting import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

SPEC_TRANSFER = {
    "H100-PCIe": "10.7 / 7.4 / 6.9 / -",
    "A100-80GB": "38 / 17 / 15 / 12",
    "A100-80GB-PCIe": "39 / 19 / 18 / 15",
    "L40S": "55 / 24 / 13 / -",
    "granite-3.3-8b": "5.4 / 3.7 / 5.2 / 4.8",
    "llama3.2-3b": "23 / 13 / 12 / 8",
    "mistral-7b-v0.1": "20 / 16 / 12 / 17",
}


class Findings(msgspec.Struct):
    """Everything that was measured; what was not is empty, and ``skipped`` says why."""

    spreads: list[Spread] = []
    validity: list[ValidityLine] = []
    pace: list[PaceLine] = []
    curves: list[CurvePoint] = []
    transfers: list[Transfer] = []
    choices: list[ChoiceLine] = []
    coverage: list[Coverage] = []
    stream: list[StreamPoint] = []
    speed: Speed | None = None
    notes: PeerNotes = msgspec.field(default_factory=PeerNotes)
    skipped: list[str] = []
    anomalies: list[str] = []
    seconds: dict[str, float] = {}


def page(found: Findings, headline: Sequence[str], pictures: Sequence[str]) -> list[str]:
    parts = [*headline]
    if found.skipped:
        parts.append("Not run:\n\n" + _list(found.skipped))
    parts += _spread_part(found)
    parts += _validity_part(found, pictures)
    parts += _pace_part(found, pictures)
    parts += _curve_part(found, pictures)
    parts += _transfer_part(found)
    parts += _choice_part(found)
    parts += _coverage_part(found, pictures)
    parts += _stream_part(found, pictures)
    parts += _speed_part(found)
    parts += _peer_part(found)
    if found.anomalies:
        parts += ["## What is odd in the data", _list(found.anomalies)]
    return parts


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def percent(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.{digits}f}%"


def _picture(pictures: Sequence[str], name: str, title: str) -> list[str]:
    return [f"![{title}]({name})"] if name in pictures else []


def _spread_part(found: Findings) -> list[str]:
    if not found.spreads:
        return []
    rows = [
        [each.table, each.free, each.cells, f"{each.median:.1f}x", f"{each.largest:.1f}x"]
        for each in found.spreads
    ]
    return [
        "## E1: how much a configuration matters",
        E1,
        markdown_table(("rows", "free", "cells", "median", "largest"), rows),
    ]


def _validity_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    if not found.validity:
        return []
    parts = ["## E2: does it fit?", E2]
    header = (
        *("predictor", "had seen", "error, all rows", "error, rule-passing", "false valid"),
        *("false invalid", "wrong at 0.8", "AUC", "Brier", "ECE"),
    )
    for name in dict.fromkeys(each.table for each in found.validity):
        for split in dict.fromkeys(each.split for each in found.validity if each.table == name):
            mine = [each for each in found.validity if (each.table, each.split) == (name, split)]
            whole = {each.subject: each.error for each in mine if each.rows == "all"}
            passing = [each for each in mine if each.rows == "rule-passing"]
            rows = [
                [
                    each.subject,
                    each.kind,
                    percent(whole[each.subject].error),
                    percent(each.error.error),
                    percent(each.error.false_valid),
                    percent(each.error.false_invalid),
                    percent(each.error.accepted_wrongly),
                    f"{each.error.auc:.3f}",
                    f"{each.error.brier:.3f}",
                    f"{each.error.ece:.3f}",
                ]
                for each in sorted(passing, key=lambda each: each.error.error)
            ]
            count = f"{next(iter(whole.values())).rows:,} answers, {passing[0].error.rows:,}"
            parts += [
                f"### {name}: {split} ({count} rule-passing)",
                markdown_table(header, rows),
            ]
    return [*parts, *_picture(pictures, "knowledge-validity.png", "Validity of held-out rows")]


def _pace_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    if not found.pace:
        return []
    parts = [
        "## E3: how fast is it?",
        E3,
    ]
    header = ("predictor", "had seen", "MAPE", "MdAPE", "within 20%", "answered", "test rows")
    for label in dict.fromkeys(each.table for each in found.pace):
        for split in dict.fromkeys(each.split for each in found.pace if each.table == label):
            mine = [each for each in found.pace if (each.table, each.split) == (label, split)]
            rows = [
                [
                    each.subject,
                    each.kind,
                    percent(each.error.mape),
                    percent(each.error.mdape, 2),
                    percent(each.error.close, 0),
                    percent(each.error.answered, 0),
                    each.error.rows,
                ]
                for each in sorted(mine, key=lambda each: each.error.mape)
            ]
            parts += [f"### {label}: {split}", markdown_table(header, rows)]
    parts += _picture(pictures, "knowledge-scatter.png", "Predicted over measured tokens/s")
    return parts


def _curve_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    if not found.curves:
        return []
    parts = [
        "## E4: how many runs must be measured?",
        E4,
    ]
    for label in dict.fromkeys(point.table for point in found.curves):
        mine = [point for point in found.curves if point.table == label]
        plans = list(dict.fromkeys((point.subject, point.strategy) for point in mine))
        sizes = sorted({point.samples for point in mine})
        by_place = {(point.subject, point.strategy, point.samples): point for point in mine}
        rows = [
            [
                f"{subject}, {strategy} ({_repeats(mine, subject, strategy)} repeats)",
                *(_curve_cell(by_place.get((subject, strategy, size))) for size in sizes),
            ]
            for subject, strategy in plans
        ]
        header = ("MAPE (MdAPE) in %", *(f"{size}" for size in sizes))
        parts += [f"### {label}", markdown_table(header, rows)]
    parts += _cost_part(found)
    return [*parts, *_picture(pictures, "knowledge-learning.png", "Learning curves")]


def _cost_part(found: Findings) -> list[str]:
    """What it takes to measure until the error is small enough, by strategy."""
    rows = []
    for label in dict.fromkeys(point.table for point in found.curves):
        for target in TARGETS:
            cells = []
            for strategy in STRATEGIES:
                samples, gpu_s = samples_to_target(found.curves, label, strategy, target)
                hours = "" if gpu_s is None else f" ({gpu_s / 3600:.1f} GPU-h)"
                cells.append("not reached" if samples is None else f"{samples}{hours}")
            if any(cell != "not reached" for cell in cells):
                rows.append([label, percent(target, 0), *cells])
    if not rows:
        return []
    header = ("table", "MAPE", *STRATEGIES)
    return ["### Runs and GPU-hours to an error", markdown_table(header, rows)]


def _repeats(points: Sequence[CurvePoint], subject: str, strategy: str) -> int:
    return next(
        point.repeats for point in points if (point.subject, point.strategy) == (subject, strategy)
    )


def _curve_cell(point: CurvePoint | None) -> str:
    return "-" if point is None else f"{100 * point.mape:.1f} ({100 * point.mdape:.1f})"


def _transfer_part(found: Findings) -> list[str]:
    if not found.transfers:
        return []
    keys = list(dict.fromkeys((each.table, each.field, each.value) for each in found.transfers))
    subjects = list(dict.fromkeys(each.subject for each in found.transfers))
    by_key = {(each.table, each.field, each.value, each.subject): each for each in found.transfers}
    rows = []
    for key in keys:
        cells = [by_key.get((*key, subject)) for subject in subjects]
        count = next(each.rows for each in cells if each is not None)
        spec = SPEC_TRANSFER.get(key[2], "-") if key[0].startswith("ibm") else "-"
        rows.append([key[0], key[1], key[2], count, *(_probes(each) for each in cells), spec])
    header = ("table", "left out", "which", "rows", *subjects, "specification")
    return [
        "## E5: a model, GPU or method that was never measured",
        E5,
        markdown_table(header, rows),
    ]


def _probes(each: Transfer | None) -> str:
    if each is None:
        return "-"
    return " / ".join(f"{100 * each.mape[k]:.1f}" if k in each.mape else "-" for k in PROBES)


def _choice_part(found: Findings) -> list[str]:
    if not found.choices:
        return []
    rows = [
        [
            each.table,
            each.candidates,
            each.source,
            each.cells,
            each.choices,
            percent(each.median_regret),
            percent(each.mean_regret),
            percent(each.invalid),
            percent(each.undecided),
        ]
        for each in found.choices
    ]
    header = (
        *("table", "candidates", "source", "cells", "choices", "median regret", "mean regret"),
        *("invalid", "undecided"),
    )
    return [
        "## E6: what `complete` chooses",
        E6,
        markdown_table(header, rows),
    ]


def _coverage_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    if not found.coverage:
        return []
    rows = [
        [
            each.table,
            each.group,
            percent(each.covered),
            percent(each.half_width),
            each.rows,
            each.answers,
        ]
        for each in found.coverage
    ]
    header = ("table", "GPU", "inside the 90% interval", "median half-width", "rows", "answers")
    return [
        "## Intervals",
        INTERVALS,
        markdown_table(header, rows),
        *_picture(pictures, "knowledge-coverage.png", "Coverage of intervals"),
    ]


def _stream_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    if not found.stream:
        return []
    rows = [
        [
            each.table,
            each.seen,
            percent(each.mape),
            percent(each.mdape),
            percent(each.validity),
        ]
        for each in found.stream
        if each.seen in {0, 25, 50, 100, 200, 300, 400} or each is found.stream[-1]
    ]
    return [
        "## Runs written back",
        STREAM,
        markdown_table(("table", "runs before", "MAPE", "MdAPE", "validity error"), rows),
        *_picture(pictures, "knowledge-stream.png", "Error on a stream of runs"),
    ]


def _speed_part(found: Findings) -> list[str]:
    speed = found.speed
    if speed is None:
        return []
    ours = speed.query / speed.points
    rows = [
        ["duetune, hybrid source, all at once", f"{1e6 * ours:.1f}", "1"],
        *(
            [name, f"{1e6 * seconds:.1f}", f"{seconds / ours:,.1f}x"]
            for name, seconds in sorted(speed.peers.items(), key=lambda each: each[1])
        ),
    ]
    return [
        "## Speed",
        (
            f"One core, after loading (which takes {speed.load:.2f} s, first query included). All "
            f"{speed.points:,} points of the poster's space: {speed.model:.2f} s by the model "
            f"alone, {speed.query:.2f} s by the hybrid source, {speed.complete:.2f} s for "
            f"`complete` with enumeration and ranking. 1,000 points: {1e3 * speed.thousand:.1f} "
            "ms. Peers are timed on 1,000 points drawn from the same space, by the call their "
            "package offers: Kavier takes a batch, Coastline one configuration at a time."
        ),
        markdown_table(("predictor", "µs per point", "to ours"), rows),
    ]


def _peer_part(found: Findings) -> list[str]:
    lines = [
        PEERS,
        *(f"Not available: {name} ({reason})." for name, reason in found.notes.unavailable.items()),
        *(
            f"{name}: {seconds:.0f} s to train once."
            for name, seconds in found.notes.seconds_to_fit.items()
        ),
    ]
    return ["## Peers", _list(lines)]
