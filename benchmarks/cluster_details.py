"""The details page of the cluster benchmark: the long tables of every experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cluster_experiments import (
    BASELINES,
    BURST,
    FIFO,
    JUDGED,
    LEARNING_JOBS,
    MARKET_LOAD,
    ORACLE,
    OURS,
    PLANNERS,
    PREDICTED,
    SIA,
    UNWEIGHED,
    WORLDS,
    burst_trial,
    reduced,
    sources_at,
)
from cluster_overhead import LIMIT_S
from cluster_report import worse_words
from cluster_trials import Trial, mean_of, over_seeds
from cluster_worlds import REPLAY_ALL, SETTINGS
from reporting import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster_experiments import Plan
    from cluster_report import Content

BOTH = (
    "The replay above has IBM's throughput table alone. With the sample of LLMFineTuningBench "
    "there is one more kind of job: a full fine-tune that was measured on two whole nodes only. "
    "Nobody overtakes it, so half of the fastest GPUs are emptied before each of its starts."
)


def details(content: Content) -> list[str]:
    """Return every table; parts that were not run are absent."""
    parts = []
    for planner, number, title in ((FIFO, "E7", "FIFO"), (SIA, "E8", "Sia")):
        for world in WORLDS:
            if table := _sources(content, planner, world):
                parts += [f"## {number}: {title} with every source, {world}", table]
        if both := _sources(content, planner, REPLAY_ALL):
            parts += ["### Replay of both tables", BOTH, both]
    return [
        *parts,
        *_settings(content),
        *_worse(content),
        *_planners(content),
        *_learning(content),
        *_overhead(content),
    ]


def _unusual(world: str, source: str, plan: Plan) -> Trial:
    return Trial(world, SIA, source, plan.loads[0], plan.few[0])


def _sources(content: Content, planner: str, world: str) -> str:
    plan, results, rows = content.plan, content.results, []
    for load in plan.loads:
        for source in sources_at(load):
            one = Trial(world, planner, source, load, plan.seeds[0])
            if not content.has(one):
                continue
            jct = mean_of(over_seeds(results, one, plan.seeds))
            cuts = [
                "" if source in BASELINES[: number + 1] else str(cut)
                for number, baseline in enumerate(BASELINES)
                if (cut := reduced(results, one, baseline, plan.seeds, source))
            ]
            rows.append(
                (
                    load,
                    "predicted" if source == PREDICTED else source,
                    f"{jct.middle:.2f} ({jct.low:.2f} to {jct.high:.2f})",
                    *cuts,
                    *(
                        f"{over_seeds(results, one, plan.seeds, field).mean():.2f}"
                        for field in (
                            *("median_jct_h", "p99_jct_h", "gpu_hours_per_job"),
                            *("failures_per_job", "mean_queued_h", "utilisation"),
                        )
                    ),
                )
            )
    header = (
        "jobs/h | source | mean JCT (h) | below random | below default | median | p99 | "
        "GPU-h/job | failed/job | queued (h) | used"
    )
    return markdown_table(header, rows) if rows else ""


def _settings(content: Content) -> list[str]:
    plan, rows = content.plan, []
    for world in plan.unusual:
        if not content.has(_unusual(world, PREDICTED, plan)):
            continue
        rows.append(
            (
                SETTINGS[world].words,
                *(
                    f"{_jct(content, one, plan.few):.2f}; {_gpu_h(content, one, plan.few)}"
                    for source in (*BASELINES, PREDICTED, ORACLE)
                    if (one := _unusual(world, source, plan))
                ),
                *(
                    str(reduced(content.results, _unusual(world, b, plan), b, plan.few))
                    for b in BASELINES
                ),
            )
        )
    if not rows:
        return []
    header = (
        "setting | random (h) | default (h) | predicted (h) | oracle (h) | below random | "
        "below default"
    )
    return [
        "## Sia where starts are slow and models large (emulated)",
        (
            f"All settings that were tried, at {plan.loads[0]} jobs/h with {len(plan.few)} seeds. "
            "Only what is named was changed. Mean JCT; GPU-hours per job. The Sia paper has "
            "restarts of 25 to 250 s. The models of 8 to 70 billion parameters are "
            f"{', '.join(SETTINGS['large'].models)}."
        ),
        markdown_table(header, rows),
    ]


def _jct(content: Content, trial: Trial, seeds: Sequence[int]) -> float:
    return float(over_seeds(content.results, trial, seeds).mean())


def _gpu_h(content: Content, trial: Trial, seeds: Sequence[int]) -> str:
    """Return the GPU-hours per job, which stand beside every completion time."""
    hours = over_seeds(content.results, trial, seeds, "gpu_hours_per_job").mean()
    return f"{hours:.2f} GPU-h"


def _worse(content: Content) -> list[str]:
    plan, rows = content.plan, []
    for source in (PREDICTED, *plan.worse):
        cells = []
        for world in WORLDS:
            for planner in (FIFO, SIA, OURS):
                one = Trial(world, planner, source, MARKET_LOAD, plan.few[0])
                if content.has(one) and content.has(_with(one, "random")):
                    cut = reduced(content.results, one, "random", plan.few, source)
                    cells.append(f"{cut.middle:.0%}")
        if len(cells) == 3 * len(WORLDS):
            rows.append((worse_words(source), *cells))
    if not rows:
        return []
    header = ("knowledge", *(f"{p}, {world}" for world in WORLDS for p in (FIFO, SIA, OURS)))
    return [
        "## E9: knowledge that is wrong, stale or partial",
        (
            "By how much the mean JCT is below that of the same planner with random completion, at "
            f"{MARKET_LOAD} jobs/h, {len(plan.few)} seeds. A negative figure is a loss."
        ),
        markdown_table(header, rows),
    ]


def _with(trial: Trial, source: str) -> Trial:
    return msgspec.structs.replace(trial, source=source)


def _planners(content: Content) -> list[str]:
    plan, parts = content.plan, []
    for world in WORLDS:
        rows = []
        for planner in (*PLANNERS, UNWEIGHED):
            trials = [Trial(world, planner, PREDICTED, load, plan.seeds[0]) for load in plan.loads]
            if not all(content.has(each) for each in trials):
                continue
            cells = []
            for each in trials:
                jct = mean_of(over_seeds(content.results, each, plan.seeds))
                text = f"{jct.middle:.2f} ({jct.low:.2f} to {jct.high:.2f})"
                if content.has(_with(each, ORACLE)):
                    ratio = jct.middle / _jct(content, _with(each, ORACLE), plan.seeds)
                    text += f", {ratio:.2f}"
                cells.append(f"{text}; {_gpu_h(content, each, plan.seeds)}")
            rows.append((planner, *cells))
        if rows:
            header = ("planner", *(f"{load} jobs/h" for load in plan.loads))
            parts += [f"### {world.capitalize()}", markdown_table(header, rows)]
    if not parts:
        return []
    return [
        "## E10: every planner with predicted knowledge",
        (
            "Mean JCT in hours with its interval; for three planners also its ratio to the mean "
            "JCT with the oracle; then GPU-hours per job. No job has a deadline here, so `edf` "
            f"serves in order of arrival and lets others overtake. `{UNWEIGHED}` is our planner "
            "without a weight of GPU-hours."
        ),
        *parts,
        *_bursts(content),
    ]


def _bursts(content: Content) -> list[str]:
    plan, rows = content.plan, []
    for planner in JUDGED:
        for source in ("random", PREDICTED, ORACLE):
            cells = []
            for world in WORLDS:
                one = burst_trial(world, planner, source, plan.seeds[0])
                if not content.has(one):
                    return []
                jct = mean_of(over_seeds(content.results, one, plan.seeds))
                cut = reduced(content.results, one, "random", plan.seeds, source)
                cells += [
                    f"{jct.middle:.2f} ({jct.low:.2f} to {jct.high:.2f})",
                    _gpu_h(content, one, plan.seeds),
                    "" if source == "random" else str(cut),
                ]
            rows.append((planner, "predicted" if source == PREDICTED else source, *cells))
    header = ("planner", "source")
    for world in WORLDS:
        header += (f"{world}: mean JCT (h)", "per job", "below random")
    return [
        "### Jobs in bursts",
        (
            f"{MARKET_LOAD} jobs/h as before, but {BURST:g} of them at once on average, as when "
            "somebody tries several settings (the number has a geometric distribution)."
        ),
        markdown_table(header, rows),
    ]


def _learning(content: Content) -> list[str]:
    if not content.learning:
        return []
    words = {
        "learning": "begins with nothing, learns from every job",
        "frozen": "begins with nothing, learns nothing",
        ORACLE: "oracle",
    }
    rows = [
        (
            words[each.name],
            *(
                f"{part.middle:.2f} ({part.low:.2f} to {part.high:.2f}); {hours:.2f} GPU-h"
                for part, hours in zip(each.jct_h, each.gpu_hours, strict=True)
            ),
            *(f"{failed:.2f}" for failed in each.failures),
        )
        for each in content.learning
    ]
    thirds = ("first third", "second", "last")
    header = (
        *("source", *(f"{third}: mean JCT (h)" for third in thirds)),
        *(f"{third}: failed/job" for third in thirds),
    )
    return [
        "## Does knowledge grow by itself? (emulated)",
        (
            f"FIFO, {LEARNING_JOBS} jobs at {MARKET_LOAD} an hour, {len(content.plan.few)} seeds. "
            "The `hybrid` source begins with an empty history, that is, with physics alone. Later "
            "thirds have other jobs, so compare within a column. GPU-hours are per job."
        ),
        markdown_table(header, rows),
    ]


def _overhead(content: Content) -> list[str]:
    if not content.timings:
        return []
    rows = [
        (
            each.gpus,
            each.jobs,
            each.shapes,
            each.planner if each.planner != "every shape" else "sia, every shape",
            each.pairs,
            1000 * each.median_s,
            1000 * each.p95_s,
            f"{each.gap:.1e}",
        )
        for each in content.timings
    ]
    header = "GPUs | jobs | shapes | planner | pairs | median (ms) | p95 (ms) | gap to the bound"
    parts = [
        "## E11: how long a round takes",
        (
            "The whole `plan()` of made-up rounds, in milliseconds of one core. *Every shape* lets "
            "jobs more than double in a round, so the program has about as many pairs as in "
            "published figures. Pairs and gap are those of Sia's program."
        ),
        markdown_table(header, rows),
    ]
    if content.peers:
        peer_rows = [
            (
                each.gpus,
                each.solver,
                each.rounds,
                1000 * each.median_s,
                f"{each.ratio:.1f}x",
                f"{each.worst:.1e}",
            )
            for each in content.peers
        ]
        peer_header = ("GPUs", "solver", "rounds", "median (ms)", "of ours", "objectives differ by")
        parts += [
            (
                "The same program (every shape), written densely with cvxpy as in the published "
                "scheduler and solved by CBC or GLPK with the same gap of 0.01%. It was stopped "
                f"where a round takes more than {LIMIT_S:.0f} s."
            ),
            markdown_table(peer_header, peer_rows),
        ]
    return parts
