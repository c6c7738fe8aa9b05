"""The main page of the results on configuration knowledge; ``knowledge_details`` has the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from knowledge_baselines import ALONE, OURS, OURS_UNFILTERED
from knowledge_campaigns import CampaignLine
from knowledge_choices import ChoiceLine, Speed
from knowledge_errors import IN_SAMPLE, Coverage, PaceLine, PeerNotes, Spread, ValidityLine
from knowledge_learning import (
    STRATEGIES,
    TARGETS,
    CurvePoint,
    StreamPoint,
    Transfer,
    samples_to_target,
)
from reporting import bullets, markdown_table, section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_SELVES = (OURS, OURS_UNFILTERED)
QUESTION = (
    "Does a configuration fit, how fast is it, how sure is that, and which one is best: how often "
    "is duetune wrong, beside its peers on the same rows?"
)


def plain(lines: str) -> str:
    """Return wrapped lines as one."""
    return " ".join(lines.split())


MAIN = plain("""
The least error of each kind of predictor. *Held out or refit* predictors learn from the same rows
as duetune, by their own code: gradient boosting, nearest neighbours, our physics alone, Kavier,
Coastline and AutoConf. *In-sample* peers are as their package ships them: fitted to these very rows
or to most of the same measurements. Random splits leave neighbours of a factorial sweep on both
sides and flatter everybody; judge by the others. *No quarantine*: duetune also learns from rows
that imply more than 85% of the GPU's peak.
""")
OTHER_DAYS_HEADING = "## Runs of another campaign"
OTHER_DAYS = plain("""
Each campaign is held out whole and the model learns from all others; *inside* is the share of rows
in their 90% interval, with its median half-width. Campaigns of packed rows are sessions of one day,
up to 2.5 hours apart. Kernels were launched faster in some than in others, so small models are all
fast or all slow in one campaign, and a single campaign may be far from 90%. Rows that are flagged
as misdescribed neither teach nor count, and the formulas were chosen on the same campaigns. The
public tables are judged by a model that saw only our runs: every row is *flagged* because something
about it was never measured, and its interval is wider (made by `python benchmarks/knowledge.py
--campaigns`).
""")
NOT_KNOWN = plain("""
Not known: nothing of ours was measured on several GPUs. `sample` has only 171 rows, so 34 test rows
in a split make one row 3%. The cost exponent of active choice was chosen on IBM's table.
""")


class Findings(msgspec.Struct):
    """Everything that was measured. What was not is empty, and ``skipped`` says why."""

    spreads: list[Spread] = []
    validity: list[ValidityLine] = []
    pace: list[PaceLine] = []
    curves: list[CurvePoint] = []
    transfers: list[Transfer] = []
    choices: list[ChoiceLine] = []
    coverage: list[Coverage] = []
    campaigns: list[CampaignLine] = []
    elsewhere: list[CampaignLine] = []
    stream: list[StreamPoint] = []
    speed: Speed | None = None
    notes: PeerNotes = msgspec.field(default_factory=PeerNotes)
    skipped: list[str] = []
    anomalies: list[str] = []
    seconds: dict[str, float] = {}


def page(found: Findings, figures: dict[str, object], pictures: Sequence[str]) -> list[str]:
    """Return the main tables, the pictures and the findings."""
    parts = [_headline(found, figures)]
    if found.skipped:
        parts.append("Not run:\n\n" + bullets(found.skipped))
    parts += other_days_part(found, pictures)
    parts += ["## Beside peers", *_comparison(found), MAIN, NOT_KNOWN]
    parts += picture(pictures, "knowledge-scatter.png", "Predicted over measured tokens/s")
    parts += picture(pictures, "knowledge-validity.png", "Validity of held-out rows")
    parts += _cost_part(found)
    return [*parts, *picture(pictures, "knowledge-learning.png", "Learning curves")]


def other_days_part(found: Findings, pictures: Sequence[str]) -> list[str]:
    """Return the section on campaigns that were held out whole, and on public tables by a model of
    our own runs.
    """
    header = (
        "rows | held out | tried | pace inside | memory inside | wrong about fitting | flagged | "
        "ran at P < 2%"
    )
    rows = [
        [
            *(each.kind, each.campaign, each.rows),
            f"{percent(each.pace)} (±{percent(each.pace_width, 0)})",
            "-"
            if math.isnan(each.memory)
            else f"{percent(each.memory)} (±{percent(each.memory_width)})",
            *(percent(each.wrong), each.flagged, each.refused),
        ]
        for each in (*found.campaigns, *found.elsewhere)
    ]
    return [
        *section(OTHER_DAYS_HEADING, OTHER_DAYS, header, rows),
        *picture(pictures, "knowledge-campaigns.png", "Coverage of held-out campaigns"),
    ]


def replace_section(page: Path, parts: Sequence[str]) -> None:
    """Write a section, which begins with its heading, in the place of the old one; a new section
    comes before all others.
    """
    head, *sections = page.read_text(encoding="utf-8").split("\n## ")
    heading = parts[0].removeprefix("## ")
    written = "\n\n".join([heading, *parts[1:]]) + "\n"
    others = [each for each in sections if each.partition("\n")[0] != heading]
    place = next((number for number, each in enumerate(sections) if each not in others), 0)
    others.insert(place, written)
    page.write_text("\n## ".join([head, *others]).rstrip("\n") + "\n", encoding="utf-8")


def percent(value: float, digits: int = 1) -> str:
    """Return a share as a percentage, or a dash if it is not known."""
    return "-" if math.isnan(value) else f"{100 * value:.{digits}f}%"


def picture(pictures: Sequence[str], name: str, title: str) -> list[str]:
    """Return the link to a picture, if it was drawn."""
    return [f"![{title}]({name})"] if name in pictures else []


def _headline(found: Findings, figures: dict[str, object]) -> str:
    """One row per claim, beside the figure of the CoTune poster where it has one."""
    rows = []
    public = any(each.subject == OURS_UNFILTERED for each in found.pace)
    how = ", no quarantine" if public else ""
    if figures["mape"] is not None:
        rows += [
            (f"tokens/s, MAPE, random 85/15{how}", percent(figures["mape"]), "9.4%"),
            (f"tokens/s, MdAPE, random 85/15{how}", percent(figures["mdape"], 2), ""),
        ]
    if figures["samples_to_11_percent"] is not None:
        rows += [
            ("random runs to 11% MAPE, plausible rows", figures["samples_to_11_percent"], "600"),
            ("random runs to 11% MAPE, all rows", figures["samples_to_11_percent_all_rows"], "600"),
        ]
    costs = figures["active_cost_to_random"]
    if costs:
        told = ", ".join(f"{percent(value, 0)} to {name}" for name, value in costs.items())
        rows.append(("GPU-seconds of active choice over random", told, ""))
    errors = figures["validity_error"]
    for name, label in (
        ("all", "does it fit: wrong, public rows, random 80/20"),
        ("rule_passing", "does it fit: wrong, rule-passing rows"),
        ("own_gpu", "does it fit: wrong, our own H200 runs"),
    ):
        if errors[name] is not None:
            rows.append((label, percent(errors[name]), "4.2%" if name == "all" else ""))
    days = figures["other_days"]
    if days:
        covered = f"pace {percent(days['pace'])}, memory {percent(days['memory'])}"
        rows += [
            ("90% intervals cover, another campaign of this trainer", covered, ""),
            ("does it fit: wrong, the same", percent(days["validity_error"]), ""),
        ]
    if figures["coverage"]:
        covered = ", ".join(
            f"{name} {percent(value)}" for name, value in figures["coverage"].items()
        )
        rows.append(("90% intervals of pace cover, rows held out", covered, ""))
    if figures["top1_regret"] is not None:
        regret, invalid = percent(figures["top1_regret"]), percent(figures["invalid_choices"])
        rows.append(("`complete`: median regret, invalid choices", f"{regret}, {invalid}", ""))
    if found.speed is not None:
        spent = f"{found.speed.query:.2f} s, {1e3 * found.speed.thousand:.1f} ms"
        rows.append((f"scoring {found.speed.points:,} and 1,000 points, one core", spent, ""))
    return markdown_table(("what", "duetune", "CoTune poster"), rows)


def _comparison(found: Findings) -> list[str]:
    """Two tables of the least errors by split, and a sentence that names the losses."""
    validity = [each for each in found.validity if each.rows == "rule-passing"]
    parts = []
    for title, lines, error in (
        ("tokens/s, MAPE", found.pace, lambda each: each.error.mape),
        ("wrong about fitting, rule-passing rows", validity, lambda each: each.error.error),
    ):
        rows, compared, lost = [], 0, []
        for key in dict.fromkeys((each.table, each.split) for each in lines):
            mine = [each for each in lines if (each.table, each.split) == key]
            ours = {each.subject: error(each) for each in mine if each.subject in _SELVES}
            others = [each for each in mine if each.subject not in {*_SELVES, ALONE}]
            fair = [each for each in others if each.kind != IN_SAMPLE]
            best = min(fair, key=error, default=None)
            if best is not None:
                compared += 1
                if error(best) < ours[OURS]:
                    lost.append(f"{key[0]}, {key[1]}")
            rows.append(
                (
                    *key,
                    *(percent(ours[name]) if name in ours else "" for name in _SELVES),
                    _named(best, error),
                    _named(
                        min((x for x in others if x.kind == IN_SAMPLE), key=error, default=None),
                        error,
                    ),
                )
            )
        if rows:
            header = ("rows", "split", "duetune", "no quarantine", "best held out or refit")
            told = (
                "duetune has the least error of all that learned from the same rows in "
                f"{compared - len(lost)} of {compared} splits."
            )
            if lost:
                told += f" It loses in: {'; '.join(lost)}."
            parts += [f"### {title}", markdown_table((*header, "best in-sample"), rows), told]
    return parts


def _named(line: PaceLine | ValidityLine | None, error: Callable[..., float]) -> str:
    return "" if line is None else f"{percent(error(line))} ({line.subject})"


def _cost_part(found: Findings) -> list[str]:
    """Runs and GPU-hours until the error is small enough, by strategy."""
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
    return ["## Runs and GPU-hours to an error", markdown_table(header, rows)]
