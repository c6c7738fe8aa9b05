"""The page of the cluster benchmark."""

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
    WORLDS,
    burst_trial,
    market_trial,
    oracle_ratios,
    reduced,
    sources_at,
)
from cluster_trials import Trial, mean_of, over_seeds, reduction
from cluster_words_planning import Content, markets, overhead
from cluster_worlds import EMULATED, REPLAY, REPLAY_ALL, SETTINGS
from reporting import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster_experiments import Plan

DEFINITIONS = """\
- **random**: every field that the user leaves open is drawn, evenly among all configurations that \
break no rule. FIFO draws one configuration for a job; after an out-of-memory failure it draws \
again among those that need less. Sia draws one for each number and type of GPUs.
- **default**: site defaults for all jobs alike: the first GPU type, four of them, batch 16, or \
what is nearest to that.
- **analytic**: physics with constants of experience; nothing was measured.
- **proportional**: what Sia itself knows as published, with its profiling for free: every batch \
size measured on as few GPUs as work (mostly one) of each type, more of them in proportion.
- **predicted**: the `hybrid` source, which has learnt from half of the runs (replay) or from 600 \
emulated runs with 5% noise. It is frozen while jobs run.
- **oracle**: the truth.

*Sia without knowledge* is Sia with `random` (or `default`): its program, round after round, with \
paces taken to be in proportion to GPUs until a job has shown its pace, and with configurations \
chosen blindly; it learns from failures of the job and from the pace that a job shows, as all do."""

SETTING = """\
The cluster has 32 A100 with NVLink (4 nodes of 8), 16 A100 with PCIe and 16 L40S (4 nodes of 4 \
each). Users give model, method and sequence length; GPU type, number of GPUs, batch and sharding \
are open. Work is log-normal: 1,500 s at the median configuration that works, sigma 1. Arrivals \
are Poisson. A start or restart takes 60 s, one that fails 120 s, and plans are made every 60 s. \
**Replay** ({replay_jobs} jobs): only configurations that were really measured can be chosen, and \
they do what was measured; almost all of them work, so validity counts for little. **Emulated** \
({emulated_jobs} jobs): a model fitted to all measurements fills a grid, a third of which runs out \
of memory; it is of the same form as the predicting one, which flatters it. JCT is the time from \
submission to the end. Intervals are 95%, by a paired bootstrap over {seeds} seeds; each seed has \
the same jobs for every planner and source."""


BOTH = """\
The replay above has IBM's throughput table alone. With the sample of LLMFineTuningBench beside it \
there is one more kind of job, a full fine-tune that was measured on two whole nodes only. Nobody \
overtakes it, so half of the fastest GPUs are emptied before each of its starts, whatever is \
known."""


def page(content: Content) -> list[str]:
    """Parts for which nothing was run are left out."""
    parts = [_findings(content), _setting(content.plan)]
    for planner, number in ((FIFO, "E7"), (SIA, "E8")):
        for world in WORLDS:
            table = _sources(content, planner, world)
            if table:
                title = "FIFO" if planner == FIFO else "Sia"
                parts += [f"## {number}: {title} with every source, {world}", table]
        both = _sources(content, planner, REPLAY_ALL)
        if both:
            parts += ["### Replay of both tables", BOTH, both]
    if parts[2:]:
        parts += ["![Mean JCT by source](cluster-sources.png)"]
    parts += [*_settings(content), *_worse(content), *_planners(content), *_learning(content)]
    parts += [*markets(content), *overhead(content), *_limits(content)]
    return parts


def _findings(content: Content) -> str:
    plan, lines = content.plan, []
    for planner, name in ((FIFO, "FIFO"), (SIA, "Sia")):
        for world in WORLDS:
            told = []
            for load in plan.loads:
                one = Trial(world, planner, "random", load, plan.seeds[0])
                if content.has(one):
                    cut = reduced(content.results, one, "random", plan.seeds)
                    told.append(f"{cut.middle:.0%} at {load}")
            if told:
                lines.append(
                    f"- {name} with predicted knowledge, {world}: mean JCT below that with random "
                    f"completion by {', '.join(told)} jobs/h."
                )
    best = _best_setting(content)
    if best:
        lines.append(best)
    ratios = oracle_ratios(content.results, plan)
    if ratios:
        worst = max(ratios, key=lambda each: ratios[each])
        within = sum(ratio <= 1.05 for ratio in ratios.values())
        lines.append(
            f"- Predicted knowledge is within 5% of the oracle's mean JCT in {within} of "
            f"{len(ratios)} settings; the worst is {ratios[worst]:.2f} times ({worst})."
        )
    lines += _ours(content)
    lines += [
        f"- A Sia round with {each.gpus:,} GPUs and {each.jobs:,} jobs takes "
        f"{1000 * each.median_s:.0f} ms of one core."
        for each in content.timings
        if each.planner == SIA and each.gpus in {64, 2048}
    ]
    return "\n".join(lines)


def _ours(content: Content) -> list[str]:
    """Our planner against Sia, both with predicted knowledge."""
    plan, results, lines = content.plan, content.results, []
    for world in WORLDS:
        told = []
        for load in plan.loads:
            sia, ours = (
                Trial(world, planner, PREDICTED, load, plan.seeds[0]) for planner in (SIA, OURS)
            )
            if content.has(sia) and content.has(ours):
                cut = reduction(
                    over_seeds(results, sia, plan.seeds), over_seeds(results, ours, plan.seeds)
                )
                told.append(f"{cut} at {load}")
        if told:
            lines.append(
                f"- {OURS}, {world}: mean JCT below Sia's with the same knowledge by "
                f"{', '.join(told)} jobs/h."
            )
    for market in content.markets:
        sia, ours = (market_trial(planner, market, plan.seeds[0]) for planner in (SIA, OURS))
        if content.has(sia) and content.has(ours):
            cheaper = reduction(
                over_seeds(results, sia, plan.seeds, "dollars"),
                over_seeds(results, ours, plan.seeds, "dollars"),
            )
            late = [over_seeds(results, one, plan.seeds, "missed").mean() for one in (ours, sia)]
            lines.append(
                f"- {OURS} with {market} spot nodes (replay): cheaper than Sia by {cheaper}, "
                f"{late[0]:.1%} of the jobs late instead of {late[1]:.1%}."
            )
    return lines


def _best_setting(content: Content) -> str:
    found = [
        (reduced(content.results, one, baseline, content.plan.few), world, baseline)
        for world in content.plan.unusual
        for baseline in BASELINES
        if content.has(one := _unusual(world, baseline, content.plan))
    ]
    if not found:
        return ""
    cut, world, baseline = max(found, key=lambda each: each[0].middle)
    return (
        f"- Sia's largest reduction of {len(found)} that were tried in unusual settings, all of "
        f"them below and emulated: {cut} against Sia with {baseline}, with "
        f"{SETTINGS[world].words} at {content.plan.loads[0]} jobs/h."
    )


def _unusual(world: str, source: str, plan: Plan) -> Trial:
    return Trial(world, SIA, source, plan.loads[0], plan.few[0])


def _setting(plan: Plan) -> str:
    text = SETTING.format(
        replay_jobs=SETTINGS[REPLAY].jobs,
        emulated_jobs=SETTINGS[EMULATED].jobs,
        seeds=len(plan.seeds),
    )
    return f"## Setting\n\n{text}\n\n## Baselines and sources\n\n{DEFINITIONS}"


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
        *("jobs/h", "source", "mean JCT (h)", "below random", "below default", "median", "p99"),
        *("GPU-h/job", "failed/job", "queued (h)", "used"),
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
                    f"{_jct(content, _unusual(world, source, plan), plan.few):.2f}"
                    for source in (*BASELINES, PREDICTED, ORACLE)
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
        *("setting", "random (h)", "default (h)", "predicted (h)", "oracle (h)"),
        *("below random", "below default"),
    )
    return [
        "## Sia where starts are slow and models large (emulated)",
        (
            f"All settings that were tried, at {plan.loads[0]} jobs/h with {len(plan.few)} seeds; "
            "nothing but what is named was changed. The Sia paper has restarts of 25 to 250 s. "
            "Models of 8 to 70 billion parameters are "
            f"{', '.join(SETTINGS['large'].models)}."
        ),
        markdown_table(header, rows),
    ]


def _jct(content: Content, trial: Trial, seeds: Sequence[int]) -> float:
    return float(over_seeds(content.results, trial, seeds).mean())


WORSE_WORDS = {
    "biased:1": "all paces taken for twice what they are",
    "share:0.25": "stale: the first quarter of history",
    "nothing": "no history at all: physics alone",
    "partial:validity": "paces known, but not what fits",
}


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
            noise = f"paces off by {float(source[6:]):.0%}" if source.startswith("noisy") else ""
            rows.append((noise or WORSE_WORDS.get(source, "predicted"), *cells))
    if not rows:
        return []
    header = ("knowledge", *(f"{p}, {world}" for world in WORLDS for p in (FIFO, SIA, OURS)))
    return [
        "## E9: knowledge that is wrong, stale or partial",
        (
            f"Mean JCT below that of the same planner with random completion, at {MARKET_LOAD} "
            f"jobs/h, {len(plan.few)} seeds. Below zero it does harm."
        ),
        markdown_table(header, rows),
        "![What error costs](cluster-worse.png)",
    ]


def _with(trial: Trial, source: str) -> Trial:
    return msgspec.structs.replace(trial, source=source)


def _planners(content: Content) -> list[str]:
    plan, parts = content.plan, []
    for world in WORLDS:
        rows = []
        for planner in PLANNERS:
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
                cells.append(text)
            rows.append((planner, *cells))
        if rows:
            header = ("planner", *(f"{load} jobs/h" for load in plan.loads))
            parts += [f"### {world.capitalize()}", markdown_table(header, rows)]
    if not parts:
        return []
    bursts = _bursts(content)
    return [
        "## E10: every planner with predicted knowledge",
        (
            "Mean JCT in hours with its interval; for three of them its ratio to that with the "
            "oracle. No job has a deadline here, so `edf` serves in order of arrival, and lets "
            "others overtake."
        ),
        *parts,
        "![Mean JCT by load](cluster-loads.png)",
        *bursts,
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
                    "" if source == "random" else str(cut),
                ]
            rows.append((planner, "predicted" if source == PREDICTED else source, *cells))
    header = ("planner", "source")
    for world in WORLDS:
        header += (f"{world}: mean JCT (h)", "below random")
    return [
        "### Jobs in bursts",
        (
            f"{MARKET_LOAD} jobs/h as before, but {BURST:g} of them at once in the mean, as when "
            "somebody tries several settings (the number is drawn from a geometric law)."
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
            *(f"{part.middle:.2f} ({part.low:.2f} to {part.high:.2f})" for part in each.jct_h),
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
            "The `hybrid` source begins with an empty history: physics alone. Later thirds have "
            "other jobs, so compare within a column."
        ),
        markdown_table(header, rows),
    ]


def _limits(content: Content) -> list[str]:
    lines = [
        (
            "- Throughput stands for goodput: what larger batches do to convergence is not in it. "
            "Users bound the batch where that matters."
        ),
        (
            "- Jobs keep their progress when they are moved; a restart costs the same for every "
            "model but in the settings that say otherwise."
        ),
        (
            "- Emulated truth is of the same form as the model that predicts it. Read those "
            "figures as an upper bound of what knowledge is worth."
        ),
        ("- E12, side by side with the published Sia on its own traces, was not run."),
        *(f"- Left out: {reason}." for reason in content.skipped),
    ]
    return ["## Limits", "\n".join(lines)]
