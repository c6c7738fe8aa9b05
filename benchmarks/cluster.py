"""Planners on a shared cluster, with and without configuration knowledge: E7 to E11.

The replay of measured configurations is the primary result; emulated figures are labelled.
``--parts`` runs only some experiments, and then no page is written.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

import cluster_experiments as experiments
from cluster_details import details
from cluster_experiments import (
    FIFO,
    LEARNERS,
    OURS,
    PREDICTED,
    SIA,
    WORLDS,
    Learning,
    Plan,
    Results,
)
from cluster_figures import loads_figure, sources_figure, worse_figure
from cluster_overhead import (
    QUICK_PEER_SIZES,
    QUICK_SIZES,
    SIZES,
    PeerTiming,
    Timing,
    overhead,
    peers,
)
from cluster_report import QUESTION, Content, page
from cluster_trials import PREPARED, PROCESSES, Trial, run_trials
from cluster_worlds import EMULATED, MARKETS, REPLAY, SETTINGS, missing, prepared
from duetune.errors import InvalidInput, NotFound
from duetune.market.datasets import data_file
from reporting import arguments, finish, publish, save_pictures

PARTS = ("e7", "e8", "e9", "e10", "learning", "settings", "market", "e11")
DRAWS = 4
"""Halves of the runs, or draws of the emulated ones, that sources learn from in turn."""

FULL = Plan(
    seeds=tuple(range(10)),
    few=tuple(range(4)),
    loads=experiments.LOADS,
    unusual=experiments.UNUSUAL,
    worse=experiments.WORSE,
)
QUICK = Plan(
    seeds=(0, 1),
    few=(0,),
    loads=(24,),
    unusual=("slower",),
    worse=("noisy:0.5", "nothing"),
)


def main() -> None:
    parser = arguments("Planners on a shared cluster, with and without configuration knowledge.")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--keep", type=Path, help="a file of simulations: those in it are not run again"
    )
    options = parser.parse_args()
    parts = tuple(options.parts.split(","))
    for part in parts:
        if part not in PARTS:
            raise InvalidInput("parts", part, f"some of {', '.join(PARTS)}")
    plan = QUICK if options.quick else FULL
    absent = missing()
    kinds, why = _markets()
    results: Results = {}
    learning: list[Learning] = []
    if not absent:
        trials = _trials(parts, plan, kinds)
        _prepare(trials, options.seed, quick=options.quick, learning="learning" in parts)
        results = run_trials(trials, "simulating", options.keep)
        if "learning" in parts:
            learning = _learn(plan)
    timings: list[Timing] = []
    peer_timings: list[PeerTiming] = []
    reasons: list[str] = []
    if "e11" in parts:
        sizes, repeats = (QUICK_SIZES, 5) if options.quick else (SIZES, 15)
        timings = overhead(sizes, (SIA, OURS), repeats, options.seed)
        peer_timings, reasons = peers(
            QUICK_PEER_SIZES if options.quick else SIZES,
            options.seed,
            rounds=1 if options.quick else 3,
            install=not options.quick,
        )
    content = Content(
        plan=plan,
        results=results,
        learning=learning,
        timings=timings,
        peers=peer_timings,
        skipped=[*absent, *why, *reasons],
        markets=kinds,
    )
    write = not (options.quick or options.no_write) and set(parts) == set(PARTS) and bool(results)
    if results and set(parts) == set(PARTS):
        # Drawn in any case, so that --quick shows what would fail at the end of a long run.
        drawn = {
            "cluster-sources.png": sources_figure(results, plan),
            "cluster-loads.png": loads_figure(results, plan),
            "cluster-worse.png": worse_figure(results, plan),
        }
        if write:
            save_pictures(drawn)
    publish(
        "cluster",
        "Planners on a shared cluster",
        QUESTION,
        page(content),
        write=write,
        details=details(content),
    )
    finish(figures(results, plan, timings, peer_timings, content.skipped))


def _markets() -> tuple[tuple[str, ...], list[str]]:
    try:
        data_file("spot_traces_slots.parquet")
    except NotFound as error:
        return ("synthetic",), [f"real spot markets: {error}"]
    return MARKETS, []


def _trials(parts: tuple[str, ...], plan: Plan, kinds: tuple[str, ...]) -> list[Trial]:
    found: list[Trial] = []
    if "e7" in parts:
        found += experiments.of_sources(FIFO, plan)
        found += experiments.of_both_tables(plan)
    if "e8" in parts:
        found += experiments.of_sources(SIA, plan)
    if "e9" in parts:
        found += experiments.of_worse_knowledge(plan)
    if "e10" in parts:
        found += experiments.of_planners(plan)
        found += experiments.of_bursts(plan)
    if "settings" in parts:
        found += experiments.of_settings(plan)
    if "market" in parts:
        found += experiments.of_markets(plan, kinds)
    return found


def _prepare(trials: list[Trial], seed: int, *, quick: bool, learning: bool) -> None:
    worlds = {trial.world for trial in trials} | ({EMULATED} if learning else set())
    for name in worlds:
        draws = 1 if quick or name not in WORLDS else DRAWS
        if SETTINGS[name].how != REPLAY:
            draws = min(draws, 2)
        PREPARED[name] = prepared(name, draws, seed)
        PREPARED[name].fit(*sorted({_fitted(each) for each in trials if each.world == name}))


def _fitted(trial: Trial) -> str:
    """Return the source that must be fitted before this trial."""
    own = trial.source.startswith(("share", "nothing"))
    return trial.source if own else PREDICTED


def _learn(plan: Plan) -> list[Learning]:
    tasks = [(name, seed) for name in LEARNERS for seed in plan.few]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as pool:
        answers = dict(zip(tasks, pool.map(experiments.learning_trial, tasks), strict=True))
    return experiments.learning_of(answers)


def figures(
    results: Results,
    plan: Plan,
    timings: list[Timing],
    peer_timings: list[PeerTiming],
    skipped: list[str],
) -> dict[str, object]:
    """Return the figures of the JSON line.

    ``fifo_reduction`` and ``sia_reduction`` are of the emulated world, like the prototype's
    figures; those of the replay have the suffix ``_replay``.
    """
    found: dict[str, object] = {"world_of_reductions": EMULATED, "seeds": len(plan.seeds)}
    for planner in (FIFO, SIA):
        for world, suffix in ((EMULATED, ""), (REPLAY, "_replay")):
            for baseline, against in (("random", ""), ("default", "_vs_default")):
                found[f"{planner}_reduction{suffix}{against}"] = {
                    str(load): experiments.reduced(results, one, baseline, plan.seeds).middle
                    for load in plan.loads
                    if (one := Trial(world, planner, baseline, load, plan.seeds[0])) in results
                    and msgspec.structs.replace(one, source=PREDICTED) in results
                }
    found["sia_reduction_settings"] = {
        f"{world} vs {baseline}": experiments.reduced(results, one, baseline, plan.few).middle
        for world in plan.unusual
        for baseline in experiments.BASELINES
        if (one := Trial(world, SIA, baseline, plan.loads[0], plan.few[0])) in results
    }
    ratios = experiments.oracle_ratios(results, plan)
    found["predicted_over_oracle"] = max(ratios.values(), default=None)
    found["predicted_over_oracle_by_setting"] = ratios
    found["unserved"] = sum(each.figures.unserved for each in results.values())
    found["round_s"] = {str(each.gpus): each.median_s for each in timings if each.planner == SIA}
    found["round_s_every_shape"] = {
        str(each.gpus): each.median_s for each in timings if each.planner == "every shape"
    }
    found["round_s_ours"] = {
        str(each.gpus): each.median_s for each in timings if each.planner == OURS
    }
    cbc = [each for each in peer_timings if each.solver == "CBC"]
    # Of the largest size at which it did every round in time.
    rounds = max((each.rounds for each in cbc), default=0)
    whole = [each for each in cbc if each.rounds == rounds]
    found["speedup_over_cbc"] = whole[-1].ratio if whole else None
    found["speedup_over_cbc_by_gpus"] = {str(each.gpus): each.ratio for each in cbc}
    found["skipped"] = skipped
    return found


if __name__ == "__main__":
    main()
