"""Configuration knowledge: does it fit, how fast is it, how sure is that, and which is best?

E1 to E6 run on public measurements and our own, beside Kavier, coastline-recommender, ado-autoconf,
gradient boosting and nearest neighbours, on the same splits in the same run. An experiment whose
table is absent is skipped, with the reason.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from knowledge_baselines import (
    ALONE,
    EXPERIENCE,
    LOG,
    NEAREST,
    OURS,
    OURS_UNFILTERED,
    PHYSICS,
    RAW,
    RULES,
)
from knowledge_campaigns import ALL as ALL_CAMPAIGNS
from knowledge_campaigns import PACKED, campaign_lines, coverage_of, elsewhere_lines
from knowledge_choices import choices, speed
from knowledge_data import absent, anomalies, groups, plausible_rows, table, valid_rows
from knowledge_details import details
from knowledge_errors import (
    GROUPED_VALIDITY,
    RANDOM,
    RANDOM_VALIDITY,
    coverages,
    pace_lines,
    peer_pace_lines,
    peer_validity_lines,
    spreads,
    validity_lines,
)
from knowledge_figures import (
    coverage_figure,
    frontier_figure,
    learning_figure,
    scatter_figure,
    stream_figure,
)
from knowledge_learning import (
    STRATEGIES,
    TARGETS,
    learning_curves,
    samples_to_target,
    stream,
    transfers,
)
from knowledge_report import QUESTION, Findings, other_days_part, page, replace_section
from knowledge_scoring import random_splits
from knowledge_trials import ALL_LABEL as ALL
from knowledge_trials import OWN as OWN_SCALE
from knowledge_trials import OWN_LABEL as OWN
from knowledge_trials import PLAUSIBLE_LABEL as PLAUSIBLE
from knowledge_trials import PUBLIC as PUBLIC_SCALE
from knowledge_trials import QUICK, Population, Said, Workers, populations
from reporting import RESULTS, arguments, finish, publish, save_pictures

if TYPE_CHECKING:
    import argparse

TABLES = ("ibm", "sample", "fms", "own")
BASELINES = (PHYSICS, EXPERIENCE, RAW, LOG, NEAREST)
FITTERS = (OURS, ALONE, PHYSICS, EXPERIENCE, LOG, NEAREST, RULES)
LEFT_OUT = ("gpu_model", "model", "method")


class Kept(msgspec.Struct):
    """Held-out answers that the figures show."""

    pace: dict[str, list[Said]] = {}
    validity: dict[str, list[Said]] = {}


def main() -> None:
    parser = arguments("Configuration knowledge against peers, on measured tables.")
    parser.add_argument("--no-peers", action="store_true", help="do not install or ask any peer")
    parser.add_argument(
        "--campaigns", action="store_true", help="only runs of another day; replaces their section"
    )
    options = parser.parse_args()
    found, kept = Findings(), Kept()
    workers = Workers()
    try:
        if options.campaigns:
            measure_other_days(found, workers)
            publish_other_days(found, write=not options.no_write)
            return
        measure(found, kept, workers, options)
    finally:
        workers.close()
    figures = headline_figures(found)
    write = not (options.quick or options.no_write)
    pictures = draw(found, kept) if write else []
    publish(
        "knowledge",
        "Configuration knowledge",
        QUESTION,
        page(found, figures, pictures),
        write=write,
        details=details(found, pictures),
    )
    finish(figures)


def measure_other_days(found: Findings, workers: Workers) -> None:
    """Hold out whole campaigns of our own table, and judge the public ones by it."""
    found.skipped += [reason for name in TABLES if (reason := absent(name))]
    for population in populations(public=False, own=absent("own") is None, quick=False):
        found.campaigns += campaign_lines(population, workers)
    public = tuple(name for name in TABLES if name != "own" and absent(name) is None)
    if found.campaigns and public:
        found.elsewhere += elsewhere_lines(public, workers)


def publish_other_days(found: Findings, *, write: bool) -> None:
    """Print the section on runs of another day and, if ``write``, replace it in the page."""
    pictures = draw(found, Kept()) if write else []
    parts = [*other_days_part(found, pictures), "The other sections are of the last full run."]
    print("\n\n".join(parts))
    if write and found.campaigns:
        replace_section(RESULTS / "knowledge.md", parts)
    finish({"other_days": _other_days(found), "skipped": found.skipped})


def measure(found: Findings, kept: Kept, workers: Workers, options: argparse.Namespace) -> None:
    """Run every experiment and fill ``found`` and ``kept``."""
    quick, peers = options.quick, not options.no_peers
    install = peers and not quick
    public = not any(absent(name) for name in TABLES if name != "own")
    own = absent("own") is None
    everyone = populations(public=public, own=own, quick=quick)
    began = time.perf_counter()

    def lap(part: str) -> None:
        found.seconds[part] = time.perf_counter() - began - sum(found.seconds.values())

    if everyone:
        found.speed = speed(everyone[0].table, found.notes, install=install, peers=peers)
        lap("speed")
    for population in everyone:
        unfiltered = (OURS,) if population.subject != OURS else ()
        subjects = (population.subject, *unfiltered, *BASELINES)
        lines, kept.pace[population.label] = pace_lines(population, subjects, workers)
        found.pace += lines
    lap("E3")
    for name in (*(("sample",) if public else ()), *(("own",) if own else ())):
        scale = QUICK if quick else PUBLIC_SCALE if name == "sample" else OWN_SCALE
        lines, kept.validity[name] = validity_lines(name, scale, FITTERS, workers)
        found.validity += lines
    lap("E2")
    for population in everyone:
        learn(found, population, workers)
    lap("E4, E5, stream")
    for population in everyone:
        choose(found, population, workers)
    lap("E1, E6, intervals")
    measure_other_days(found, workers)
    lap("other days")
    if public and peers:
        scale = QUICK if quick else PUBLIC_SCALE
        found.pace += peer_pace_lines(everyone[0], found.notes, install=install)
        found.validity += peer_validity_lines(scale, found.notes, install=install)
        lap("peers")
    found.anomalies = anomalies(public=public, own=own)


def learn(found: Findings, population: Population, workers: Workers) -> None:
    """Run E4, E5 and the stream on one population."""
    name, label, rows = population.table, population.label, population.rows
    scale, subject = population.scale, population.subject
    for plans, repeats in (
        ([(subject, "random"), (LOG, "random")], scale.random),
        ([(subject, strategy) for strategy in STRATEGIES[1:]], scale.chosen),
    ):
        if repeats and (subject == OURS or plans[0][1] == "random"):
            found.curves += learning_curves(
                name, rows, label, plans, workers, repeats=repeats, sizes=scale.sizes
            )
    if subject != OURS:
        return
    if scale.transfers:
        found.transfers += transfers(
            name, rows, label, LEFT_OUT, (OURS, LOG), workers, repeats=scale.transfers
        )
    if scale.streams:
        found.stream += stream(
            name,
            population.tried,
            label,
            workers,
            repeats=scale.streams,
            most=scale.stream_rows,
        )


def choose(found: Findings, population: Population, workers: Workers) -> None:
    """Run coverage, E1 and E6 on one population."""
    found.coverage += coverages(population, workers)
    if population.subject != OURS:
        return
    found.spreads += spreads(population.table)
    found.choices += choices(
        population.table, population.label, workers, repeats=population.scale.choices
    )


def headline_figures(found: Findings) -> dict[str, object]:
    """Return the figures of the JSON line."""
    ours = _pace(found, ALL, OURS_UNFILTERED) or _pace(found, OWN, OURS)
    samples, _ = samples_to_target(found.curves, PLAUSIBLE, "random", TARGETS[0])
    all_samples, _ = samples_to_target(found.curves, ALL, "random", TARGETS[0], OURS_UNFILTERED)
    chosen = [
        each
        for each in found.choices
        if (each.source, each.candidates) == ("hybrid", "all measured")
    ]
    weight = [each.choices for each in chosen]
    main_coverage = ALL if any(each.table == ALL for each in found.coverage) else OWN
    return {
        "mape": ours and ours.error.mape,
        "mdape": ours and ours.error.mdape,
        "samples_to_11_percent": samples,
        "validity_error": {
            "all": _validity(found, "sample", "all"),
            "rule_passing": _validity(found, "sample", "rule-passing"),
            "own_gpu": _validity(found, "own", "all"),
        },
        "coverage": {
            each.group: each.covered
            for each in found.coverage
            if each.table == main_coverage or (each.table == OWN and each.group != "total")
        },
        "other_days": _other_days(found),
        "top1_regret": float(np.average([each.median_regret for each in chosen], weights=weight))
        if chosen
        else None,
        "invalid_choices": float(np.average([each.invalid for each in chosen], weights=weight))
        if chosen
        else None,
        "seconds_72k": found.speed and found.speed.query,
        "peers": {
            f"{line.subject} ({line.kind})": {"mape": line.error.mape, "mdape": line.error.mdape}
            for line in found.pace
            if line.table == ALL
            and line.split == RANDOM
            and line.subject not in {OURS, OURS_UNFILTERED, ALONE, PHYSICS, EXPERIENCE}
        },
        "samples_to_11_percent_all_rows": all_samples,
        "active_cost_to_random": active_costs(found),
        "seconds_complete_72k": found.speed and found.speed.complete,
        "milliseconds_1000": found.speed and 1e3 * found.speed.thousand,
        "seconds_by_part": {part: round(value, 1) for part, value in found.seconds.items()},
        "skipped": found.skipped,
    }


def active_costs(found: Findings) -> dict[str, float]:
    """Return GPU-seconds of active choice to an error over those of random choice."""
    shares = {}
    for target in TARGETS:
        _, random = samples_to_target(found.curves, PLAUSIBLE, "random", target)
        _, active = samples_to_target(found.curves, PLAUSIBLE, "active", target)
        if random and active:
            shares[f"{target:.0%}"] = active / random
    return shares


def _other_days(found: Findings) -> dict[str, float]:
    """Return coverage and wrong verdicts where whole campaigns of this trainer were held out."""
    for line in found.campaigns:
        if (line.kind, line.campaign) == (PACKED, ALL_CAMPAIGNS):
            return {"pace": line.pace, "memory": line.memory, "validity_error": line.wrong}
    return {}


def _pace(found: Findings, label: str, subject: str) -> object:
    for line in found.pace:
        if (line.table, line.split, line.subject) == (label, RANDOM, subject):
            return line
    return None


def _validity(found: Findings, name: str, rows: str) -> float | None:
    for line in found.validity:
        key = (line.table, line.split, line.subject, line.rows)
        if key == (name, RANDOM_VALIDITY, OURS, rows):
            return line.error.error
    return None


def draw(found: Findings, kept: Kept) -> list[str]:
    """Draw the figures and return the names of their files."""
    drawn = {}
    if found.curves:
        drawn["knowledge-learning.png"] = learning_figure(
            [point for point in found.curves if point.table != ALL]
        )
    panels = {}
    for label, field in ((ALL, "gpu_model"), (OWN, "method")):
        if kept.pace.get(label):
            history = table("ibm" if label == ALL else "own")
            rows = valid_rows(history) if label == ALL else plausible_rows(history)
            splits = random_splits(rows, 0.15, range(len(kept.pace[label])))
            test = np.concatenate([split.test for split in splits])
            panels[label] = (kept.pace[label], groups(history, field)[test])
    if panels:
        drawn["knowledge-scatter.png"] = scatter_figure(panels)
    frontiers = {
        ("LLMFineTuningBench sample" if name == "sample" else OWN): said[GROUPED_VALIDITY]
        for name, said in kept.validity.items()
    }
    if frontiers:
        drawn["knowledge-validity.png"] = frontier_figure(frontiers)
    if found.coverage:
        drawn["knowledge-coverage.png"] = coverage_figure(found.coverage)
    if found.campaigns:
        drawn["knowledge-campaigns.png"] = coverage_figure(coverage_of(found.campaigns))
    if found.stream:
        drawn["knowledge-stream.png"] = stream_figure(found.stream)
    return save_pictures(drawn)


if __name__ == "__main__":
    main()
