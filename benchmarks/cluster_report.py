"""The main page of the cluster benchmark; ``cluster_details`` has the long tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from cluster_experiments import (
    BASELINES,
    FIFO,
    MARKET_LOAD,
    OURS,
    PREDICTED,
    SIA,
    SLACK,
    SUPPLIES,
    UNWEIGHED,
    WORLDS,
    Learning,
    Plan,
    market_trial,
    met_alone,
    oracle_ratios,
    reduced,
)
from cluster_overhead import PeerTiming, Timing
from cluster_trials import Result, Trial, over_seeds, reduction
from cluster_worlds import EMULATED, REPLAY, SETTINGS
from reporting import bullets, markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator

QUESTION = (
    "How much shorter are the jobs of a shared cluster if the planner knows what fits and how fast "
    "it is, and how does our planner (tutti) compare with FIFO, EDF and Sia?"
)
SETTING = """\
The cluster has 32 A100 with NVLink (4 nodes of 8), 16 A100 with PCIe and 16 L40S (4 nodes of 4 \
each). Users give model, method and sequence length; GPU type, number of GPUs, batch and sharding \
are open. Work is log-normal with sigma 1: 1,500 s at the median working configuration. Arrivals \
are Poisson. A start or restart takes 60 s, a failed one 120 s, and plans are made every 60 s. JCT \
is the time from submission to the end. Intervals are 95%, by a paired bootstrap over {seeds} seeds.

**Replay** ({replay_jobs} jobs): only measured configurations can be chosen, and they do what was \
measured. Almost all of them work, so knowing what fits counts for little. **Emulated** \
({emulated_jobs} jobs): a model fitted to all measurements fills a grid, a third of which runs out \
of memory. It has the same form as the predicting model, which flatters the prediction: read these \
figures as an upper bound."""
DEFINITIONS = (
    (
        "**random**: every open field is drawn evenly among the configurations that break no rule. "
        "FIFO draws once per job, and again among those that need less memory after a failure. Sia "
        "draws one for each number and type of GPUs."
    ),
    (
        "**default**: the first GPU type, four of them, batch 16, or what is nearest to that, for "
        "all jobs."
    ),
    "**analytic**: physics with constants of experience; nothing was measured.",
    (
        "**proportional**: what Sia as published knows, with its profiling for free: every batch "
        "size measured on the fewest GPUs of each type, more GPUs in proportion."
    ),
    (
        "**predicted**: the `hybrid` source, which learned from half of the runs (replay) or from "
        "600 emulated runs with 5% noise, and learns nothing while jobs run."
    ),
    "**oracle**: the truth.",
)
LIMITS = (
    (
        "Throughput stands for goodput: the effect of larger batches on convergence is not "
        "modelled. Users bound the batch where that matters."
    ),
    (
        "Jobs keep their progress when they are moved. A restart costs the same for every model, "
        "except in the settings that say otherwise."
    ),
    "Not run: E12, side by side with the published Sia on its own traces.",
)
WORSE_WORDS = {
    "biased:1": "all paces taken for twice what they are",
    "share:0.25": "stale: the first quarter of history",
    "nothing": "no history at all: physics alone",
    "partial:validity": "paces known, but not what fits",
}


class Content(msgspec.Struct, frozen=True):
    """Everything that was simulated and timed; ``skipped`` says what was not, and why."""

    plan: Plan
    results: dict[Trial, Result]
    learning: list[Learning]
    timings: list[Timing]
    peers: list[PeerTiming]
    skipped: list[str]
    markets: tuple[str, ...]

    def has(self, trial: Trial) -> bool:
        """Return whether this trial was run."""
        return trial in self.results


def page(content: Content) -> list[str]:
    """Return the main tables, the pictures and the findings; parts that were not run are absent."""
    plan = content.plan
    parts = []
    if table := _reductions(content):
        parts += [table, "![Mean JCT by source](cluster-sources.png)"]
    if lines := [*_findings(content)]:
        parts.append(bullets(lines))
    if table := _markets(content):
        parts += ["## Deadlines and a spot market (replay)", table, _market_note(plan)]
    if any(trial.planner == OURS for trial in content.results):
        parts.append("![Mean JCT by load](cluster-loads.png)")
    if any(trial.source in plan.worse for trial in content.results):
        parts.append("![What error costs](cluster-worse.png)")
    setting = SETTING.format(
        replay_jobs=SETTINGS[REPLAY].jobs,
        emulated_jobs=SETTINGS[EMULATED].jobs,
        seeds=len(plan.seeds),
    )
    limits = [*LIMITS, *(f"Left out: {reason}." for reason in content.skipped)]
    return [
        *parts,
        "## Setting",
        setting,
        "## Sources of knowledge",
        bullets(DEFINITIONS),
        "## Limits",
        bullets(limits),
    ]


def _reductions(content: Content) -> str:
    """Mean JCT and GPU-hours saved by knowledge, and by our planner with the same knowledge."""
    plan, results, rows = content.plan, content.results, []
    compared = [
        (f"{planner}, predicted knowledge over random", world, (planner, "random"), planner)
        for planner in (FIFO, SIA)
        for world in WORLDS
    ]
    ours = f"{OURS} over {SIA}, both predicted knowledge"
    compared += [(ours, world, (SIA, PREDICTED), OURS) for world in WORLDS]
    weighed = f"{OURS}, GPU-hours weighed over not"
    compared += [(weighed, world, (UNWEIGHED, PREDICTED), OURS) for world in WORLDS]
    for words, world, baseline, planner in compared:
        pairs = [
            (
                Trial(world, *baseline, load, plan.seeds[0]),
                Trial(world, planner, PREDICTED, load, plan.seeds[0]),
            )
            for load in plan.loads
        ]
        if all(content.has(each) for pair in pairs for each in pair):
            for what, field in (("mean JCT", "mean_jct_h"), ("GPU-hours", "gpu_hours_per_job")):
                cuts = [
                    str(reduction(*(over_seeds(results, each, plan.seeds, field) for each in pair)))
                    for pair in pairs
                ]
                rows.append((words, world, what, *cuts))
    header = ("less by", "world", "of", *(f"{load} jobs/h" for load in plan.loads))
    return markdown_table(header, rows) if rows else ""


def _findings(content: Content) -> Iterator[str]:
    plan, results = content.plan, content.results
    ratios = oracle_ratios(results, plan)
    if ratios:
        worst = max(ratios, key=lambda each: ratios[each])
        within = sum(ratio <= 1.05 for ratio in ratios.values())
        yield (
            f"Predicted knowledge is within 5% of the oracle's mean JCT in {within} of "
            f"{len(ratios)} settings; the worst is {ratios[worst]:.2f} times ({worst})."
        )
    yield from _best_setting(content)
    yield from _harm(content)
    for market in content.markets:
        sia, ours = (market_trial(planner, market, plan.seeds[0]) for planner in (SIA, OURS))
        if content.has(sia) and content.has(ours):
            cheaper = reduction(
                over_seeds(results, sia, plan.seeds, "dollars"),
                over_seeds(results, ours, plan.seeds, "dollars"),
            )
            late = [over_seeds(results, one, plan.seeds, "missed").mean() for one in (ours, sia)]
            yield (
                f"{OURS} with {market} spot nodes (replay) is {cheaper} cheaper than Sia; "
                f"{late[0]:.1%} of the jobs are late instead of {late[1]:.1%}."
            )
    yield from _dearer(content)
    yield from _thirstier(content)
    for each in content.timings:
        if each.planner == SIA and each.gpus in {64, 2048}:
            yield (
                f"A Sia round with {each.gpus:,} GPUs and {each.jobs:,} jobs takes "
                f"{1000 * each.median_s:.0f} ms of one core."
            )


def _best_setting(content: Content) -> Iterator[str]:
    plan = content.plan
    found = [
        (reduced(content.results, one, baseline, plan.few), world, baseline)
        for world in plan.unusual
        for baseline in BASELINES
        if content.has(one := Trial(world, SIA, baseline, plan.loads[0], plan.few[0]))
    ]
    if found:
        cut, world, baseline = max(found, key=lambda each: each[0].middle)
        yield (
            f"Knowledge saves Sia most in unusual settings ({len(found)} were tried, all "
            f"emulated): {cut} against {baseline}, with {SETTINGS[world].words} at "
            f"{plan.loads[0]} jobs/h."
        )


def _harm(content: Content) -> Iterator[str]:
    """Name the cases in which wrong knowledge is worse than none."""
    plan, told = content.plan, []
    for source in plan.worse:
        for world in WORLDS:
            for planner in (FIFO, SIA, OURS):
                one = Trial(world, planner, source, MARKET_LOAD, plan.few[0])
                if content.has(one) and content.has(msgspec.structs.replace(one, source="random")):
                    cut = reduced(content.results, one, "random", plan.few, source).middle
                    if cut < 0:
                        told.append(f"{planner}, {world}, {worse_words(source)} ({cut:.0%})")
    if told:
        yield f"Wrong knowledge does harm, compared with random: {'; '.join(told)}."


def worse_words(source: str) -> str:
    """Return what is wrong with a source of the experiment on wrong knowledge."""
    if source.startswith("noisy"):
        return f"paces off by {float(source[6:]):.0%}"
    return WORSE_WORDS.get(source, "predicted")


def _dearer(content: Content) -> Iterator[str]:
    """Name the supplies in which our planner costs more than a rival."""
    told = []
    for supply in dict.fromkeys(supply for _, supply in SUPPLIES):
        cost = {
            planner: float(over_seeds(content.results, one, content.plan.seeds, "dollars").mean())
            for planner, mine in SUPPLIES
            if mine == supply
            and content.has(one := market_trial(planner, supply, content.plan.seeds[0]))
        }
        cheapest = min(cost, key=lambda each: cost[each], default=OURS)
        if OURS in cost and cheapest != OURS:
            told.append(f"{_place(supply)} (${cost[OURS]:.2f}, {cheapest} ${cost[cheapest]:.2f})")
    if told:
        yield f"{OURS} is not the cheapest with {'; '.join(told)}."


def _thirstier(content: Content) -> Iterator[str]:
    """Say where our planner needs more GPU-hours than Sia for its shorter completion times."""
    plan, told = content.plan, []
    for world in WORLDS:
        for load in plan.loads:
            pair = [
                Trial(world, planner, PREDICTED, load, plan.seeds[0]) for planner in (SIA, OURS)
            ]
            if all(content.has(each) for each in pair):
                hours = [
                    over_seeds(content.results, each, plan.seeds, "gpu_hours_per_job")
                    for each in pair
                ]
                more = -reduction(*hours).middle
                if more >= 0.005:
                    told.append(f"{world} at {load} jobs/h ({more:.0%})")
    if told:
        yield f"{OURS} needs more GPU-hours than Sia: {'; '.join(told)}."


def _place(supply: str) -> str:
    return "owned GPUs alone" if supply == "fixed" else f"{supply} spot nodes"


def _markets(content: Content) -> str:
    plan, rows = content.plan, []
    for planner, supply in SUPPLIES:
        one = market_trial(planner, supply, plan.seeds[0])
        if content.has(one):
            figures = [
                float(over_seeds(content.results, one, plan.seeds, field).mean())
                for field in (
                    *("mean_jct_h", "gpu_hours_per_job", "p99_jct_h", "dollars"),
                    *("missed", "evictions_per_job"),
                )
            ]
            rescued = [met_alone(content.results, one, seed) for seed in plan.seeds]
            late, alone = (f"{share:.1%}" for share in (figures[4], float(np.mean(rescued))))
            rows.append((planner, _place(supply), *figures[:4], late, alone, figures[5]))
    header = (
        "planner | GPUs | mean JCT (h) | GPU-h/job | p99 JCT (h) | dollars | late | met alone | "
        "evictions/job"
    )
    return markdown_table(header, rows) if rows else ""


def _market_note(plan: Plan) -> str:
    return (
        f"All with predicted knowledge, {MARKET_LOAD} jobs/h, {len(plan.seeds)} seeds. Half of the "
        "usual GPUs are owned, at usual prices per hour of use; up to four spot nodes of 8 A100 "
        "and four of 4 L40S come and go. FIFO, Sia and EDF use spot nodes like owned ones. "
        f"Deadlines are {SLACK[0]:g} to {SLACK[1]:g} times what the median configuration needs. "
        "*Real* markets are node counts of AWS zones in 2023, at 35% of the on-demand price. *Met "
        "alone* are the jobs in time with this planner and late with both FIFO and Sia (with Sia "
        "for FIFO, and the reverse)."
    )
