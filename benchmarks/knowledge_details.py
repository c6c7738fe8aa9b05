"""The details page of the results on configuration knowledge: the tables of every experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knowledge_learning import PROBES
from knowledge_report import percent, picture, plain
from reporting import bullets, markdown_table, section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowledge_errors import PaceLine, ValidityLine
    from knowledge_learning import CurvePoint, Transfer
    from knowledge_report import Findings

    Line = PaceLine | ValidityLine

E1 = plain("""
Fastest over slowest valid configuration, among those that share everything that is not free. The
CoTune poster has 10.53x with four parameters and 40x over its whole space.
""")

E2 = plain("""
A row counts as wrong if the probability to fit is on the wrong side of one half. The columns after
the third are of the rows that break no rule. `false valid`: of the rows that do not fit, those said
to fit; `false invalid` the reverse; `wrong at 0.8`: of the rows that a scheduler would accept,
those that do not fit. `sample` is the 171 rows of LLMFineTuningBench. Who learns from the rest of
it also learns from IBM's throughput table and the fms-acceleration benches, less any model that the
split holds out.
""")

E3 = plain("""
Errors of tokens/s. The table is the training part of Coastline's own split, so its shipped models
were fitted to every row here, and Kavier's calibration to most of the same measurements.
""")

E4 = plain("""
15% of the rows are held out, the same for every strategy; the rest is the pool. Active choice takes
25 rows of a Latin hypercube first, then 25 at a time by the width of the interval over the root of
the cost, spread out. The root was chosen on IBM's table among a quarter, a half, three quarters and
one; all but the last do about as well. A run costs three minutes on each of its GPUs, or what it
took where we measured it. Means over the repeats; neighbouring sizes differ by a point or two by
chance.
""")

E5 = plain("""
MAPE in % with 0 / 5 / 10 / 20 random probes of the new model, GPU or method, the same for
everybody, judged on the rows that are never a probe. Means over the repeats. Groups are small, so a
single row can move a figure. The last column is what the specification of this benchmark found.
""")

E6 = plain("""
A cell is all measured configurations of one (model, method, sequence length), if there are eight or
more. Each source learns from a random half of the table and completes one job per cell, among all
measured configurations or only among those it has not seen. Regret is 1 - chosen / best tokens/s.
All rows of IBM's table are valid, so only tables with failed runs can show an invalid choice.
Undecided: no candidate was likely enough (0.8) to fit.
""")

INTERVALS = plain("""
Seven folds, so 14% are held out at a time and every row as often as every other. A GPU type with 20
rows has a coarse figure: 85, 90 or 95%.
""")

STREAM = plain("""
The hybrid source begins without history. Runs come in random order; it predicts the next 25, then
`observe` gives it their results.
""")

PEERS = plain("""
Kavier 0.5.3, coastline-recommender 0.3.0 and ado-autoconf 2.1.2 from PyPI, each in its own
environment; coastline brings ado-autoconf 1.9.7, whose wheel holds the classifier v3.1.
ado-autoconf 2.1.2 ships no model: it is trained here by its own functions and presets.
""")

SPEC_TRANSFER = {
    "H100-PCIe": "10.7 / 7.4 / 6.9 / -",
    "A100-80GB": "38 / 17 / 15 / 12",
    "A100-80GB-PCIe": "39 / 19 / 18 / 15",
    "L40S": "55 / 24 / 13 / -",
    "granite-3.3-8b": "5.4 / 3.7 / 5.2 / 4.8",
    "llama3.2-3b": "23 / 13 / 12 / 8",
    "mistral-7b-v0.1": "20 / 16 / 12 / 17",
}


def details(found: Findings, pictures: Sequence[str]) -> list[str]:
    """Return the tables of every experiment, the peers, and what is odd in the data."""
    parts = [
        *_spread_part(found),
        *_validity_part(found),
        *_pace_part(found),
        *_curve_part(found),
        *_transfer_part(found),
        *_choice_part(found),
        *_coverage_part(found, pictures),
        *_stream_part(found, pictures),
        *_speed_part(found),
        *_peer_part(found),
    ]
    if found.anomalies:
        parts += ["## What is odd in the data", bullets(found.anomalies)]
    return parts


def _spread_part(found: Findings) -> list[str]:
    rows = [
        [each.table, each.free, each.cells, f"{each.median:.1f}x", f"{each.largest:.1f}x"]
        for each in found.spreads
    ]
    heading = "## E1: how much a configuration matters"
    return section(heading, E1, "rows | free | cells | median | largest", rows)


def _by_split(lines: Sequence[Line]) -> list[tuple[str, str, list[Line]]]:
    """Return the lines of each table and split, in order of appearance."""
    keys = dict.fromkeys((each.table, each.split) for each in lines)
    tables = dict.fromkeys(table for table, _ in keys)
    ordered = [key for table in tables for key in keys if key[0] == table]
    return [(*key, [each for each in lines if (each.table, each.split) == key]) for key in ordered]


def _validity_part(found: Findings) -> list[str]:
    parts = ["## E2: does it fit?", E2] if found.validity else []
    header = (
        "predictor | had seen | error, all rows | error, rule-passing | false valid | "
        "false invalid | wrong at 0.8 | AUC | Brier | ECE"
    )
    for name, split, mine in _by_split(found.validity):
        whole = {each.subject: each.error for each in mine if each.rows == "all"}
        passing = [each for each in mine if each.rows == "rule-passing"]
        rows = []
        for each in sorted(passing, key=lambda each: each.error.error):
            error = each.error
            shares = (error.error, error.false_valid, error.false_invalid, error.accepted_wrongly)
            rows.append(
                [
                    *(each.subject, each.kind),
                    *(percent(share) for share in (whole[each.subject].error, *shares)),
                    *(f"{score:.3f}" for score in (error.auc, error.brier, error.ece)),
                ]
            )
        count = f"{next(iter(whole.values())).rows:,} answers, {passing[0].error.rows:,}"
        title = f"### {name}: {split} ({count} rule-passing)"
        parts += [title, markdown_table(header, rows)]
    return parts


def _pace_part(found: Findings) -> list[str]:
    parts = ["## E3: how fast is it?", E3] if found.pace else []
    header = "predictor | had seen | MAPE | MdAPE | within 20% | answered | test rows"
    for label, split, mine in _by_split(found.pace):
        rows = [
            [
                *(each.subject, each.kind, percent(each.error.mape), percent(each.error.mdape, 2)),
                *(percent(each.error.close, 0), percent(each.error.answered, 0), each.error.rows),
            ]
            for each in sorted(mine, key=lambda each: each.error.mape)
        ]
        parts += [f"### {label}: {split}", markdown_table(header, rows)]
    return parts


def _curve_part(found: Findings) -> list[str]:
    parts = ["## E4: how many runs must be measured?", E4] if found.curves else []
    for label in dict.fromkeys(point.table for point in found.curves):
        mine = [point for point in found.curves if point.table == label]
        sizes = sorted({point.samples for point in mine})
        by_plan: dict[tuple[str, str], dict[int, CurvePoint]] = {}
        for point in mine:
            by_plan.setdefault((point.subject, point.strategy), {})[point.samples] = point
        rows = []
        for (subject, strategy), points in by_plan.items():
            repeats = next(iter(points.values())).repeats
            cells = (_curve_cell(points.get(size)) for size in sizes)
            rows.append([f"{subject}, {strategy} ({repeats} repeats)", *cells])
        header = ("MAPE (MdAPE) in %", *(f"{size}" for size in sizes))
        parts += [f"### {label}", markdown_table(header, rows)]
    return parts


def _curve_cell(point: CurvePoint | None) -> str:
    return "-" if point is None else f"{100 * point.mape:.1f} ({100 * point.mdape:.1f})"


def _transfer_part(found: Findings) -> list[str]:
    subjects = list(dict.fromkeys(each.subject for each in found.transfers))
    by_key: dict[tuple[str, str, str], dict[str, Transfer]] = {}
    for each in found.transfers:
        by_key.setdefault((each.table, each.field, each.value), {})[each.subject] = each
    rows = []
    for key, mine in by_key.items():
        spec = SPEC_TRANSFER.get(key[2], "-") if key[0].startswith("ibm") else "-"
        probes = (_probes(mine.get(subject)) for subject in subjects)
        rows.append([*key, next(iter(mine.values())).rows, *probes, spec])
    header = ("table", "left out", "which", "rows", *subjects, "specification")
    return section("## E5: a model, GPU or method that was never measured", E5, header, rows)


def _probes(each: Transfer | None) -> str:
    if each is None:
        return "-"
    return " / ".join(f"{100 * each.mape[k]:.1f}" if k in each.mape else "-" for k in PROBES)


def _choice_part(found: Findings) -> list[str]:
    rows = [
        [
            *(each.table, each.candidates, each.source, each.cells, each.choices),
            *(percent(each.median_regret), percent(each.mean_regret)),
            *(percent(each.invalid), percent(each.undecided)),
        ]
        for each in found.choices
    ]
    header = (
        "table | candidates | source | cells | choices | median regret | mean regret | invalid | "
        "undecided"
    )
    return section("## E6: what `complete` chooses", E6, header, rows)


def _coverage_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    rows = [
        [
            *(each.table, each.group, percent(each.covered), percent(each.half_width)),
            *(each.rows, each.answers),
        ]
        for each in found.coverage
    ]
    header = "table | GPU | inside the 90% interval | median half-width | rows | answers"
    return [
        *section("## Intervals", INTERVALS, header, rows),
        *picture(pictures, "knowledge-coverage.png", "Coverage of intervals"),
    ]


def _stream_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    rows = [
        [each.table, each.seen, *map(percent, (each.mape, each.mdape, each.validity))]
        for each in found.stream
        if each.seen in {0, 25, 50, 100, 200, 300, 400} or each is found.stream[-1]
    ]
    header = "table | runs before | MAPE | MdAPE | validity error"
    return [
        *section("## Runs written back", STREAM, header, rows),
        *picture(pictures, "knowledge-stream.png", "Error on a stream of runs"),
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
            f"One core, after loading ({speed.load:.2f} s, first query included). All "
            f"{speed.points:,} points of the poster's space take {speed.model:.2f} s with the "
            f"model alone, {speed.query:.2f} s with the hybrid source and {speed.complete:.2f} s "
            "for `complete` with enumeration and ranking; 1,000 points take "
            f"{1e3 * speed.thousand:.1f} ms. Peers are timed on 1,000 points of the same space, by "
            "the call their package offers: Kavier takes a batch, Coastline one configuration at a "
            "time."
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
    return ["## Peers", bullets(lines)]
