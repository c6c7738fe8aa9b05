"""The tables and sentences of ``duetune recommend``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from duetune.cli.advice_format import (
    NARROW,
    between,
    chance,
    evidence_table,
    number,
    parts_table,
    shortly,
)
from duetune.cli.context import duration_words
from duetune.cli.fits import show_fit
from duetune.cli.tables import console, new_table
from duetune.knowledge.advice import percentage
from duetune.knowledge.ranking import SURE_ENOUGH
from duetune.simulate.summary import dollars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from duetune.knowledge.advice import Advice, Lesson
    from duetune.knowledge.configurations.configuration import Value
    from duetune.knowledge.sources.knowledge_source import Candidate

OBJECTIVES = {
    "deadline": "by the deadline at the least cost",
    "fastest": "as fast as possible",
    "gpu-hours": "with the fewest GPU-hours",
    "balanced": "fast, with few GPUs",
}
WORTH_A_RUN = 0.005
_PACE = "tokens/s (90%)"


def show_advice(name: str, advice: Advice, probe: str | None) -> None:
    """Print the recommendation: each field, alternatives, evidence and the next measurement."""
    screen = console()
    screen.print(f"[bold]{escape(name)}[/]: {_task(advice)}")
    screen.print()
    if advice.chosen is None:
        _show_nothing(screen, advice)
    else:
        screen.print(_choices(advice))
        screen.print()
        screen.print(_alternatives(advice, narrow=screen.width < NARROW))
        screen.print(f"[dim]The best of {advice.considered:,} configurations.[/]")
        screen.print()
        _show_evidence(screen, advice)
        screen.print(_lesson_words(advice, probe))
        screen.print()
    if advice.note and advice.chosen is not None:
        screen.print(f"[yellow]Note:[/] {escape(advice.note)}.")
    for each in advice.assumptions:
        screen.print(f"[dim]Assumed: {escape(each)}.[/]")


def _task(advice: Advice) -> str:
    limits = advice.limits
    words = [OBJECTIVES[advice.objective.value]]
    if limits.tokens is not None:
        words.insert(0, f"{number(limits.tokens)} tokens")
    if limits.deadline_s is not None:
        words.append(f"due in {duration_words(limits.deadline_s)}")
    return ", ".join(words)


def _choices(advice: Advice) -> Table:
    table = new_table("configuration", "", "why", left=("configuration", "", "why"))
    for each in advice.choices:
        style = "" if each.given else "bold"
        value = escape(_value(each.value))
        table.add_row(
            each.field, f"[{style}]{value}[/]" if style else value, f"[dim]{escape(each.reason)}[/]"
        )
    return table


def _value(value: Value) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _alternatives(advice: Advice, *, narrow: bool) -> Table:
    limits = advice.limits
    timed = limits.tokens is not None
    columns = ["", "GPUs", "configuration", *(["tok/s"] if narrow else [_PACE, "fits"])]
    columns += ["time", *([] if narrow else ["GPU-h"])] if timed else []
    columns += ["cost"] if timed and limits.price else []
    columns += ["on time"] if timed and limits.deadline_s is not None else []
    table = new_table(*columns, left=("GPUs", "configuration"))
    for place, each in enumerate(advice.candidates, start=1):
        table.add_row(*_row(place, each, columns), style="bold" if place == 1 else "")
    return table


def _row(place: int, each: Candidate, columns: list[str]) -> list[str]:
    pace = each.estimate.tokens_per_s
    cells = [
        str(place),
        f"{each.configuration.num_gpus} x {each.configuration.gpu_model}",
        shortly(each.configuration, gpu=False),
    ]
    range_ = f" ({number(pace.low)}-{number(pace.high)})" if _PACE in columns else ""
    cells.append(f"{number(pace.middle)}{range_}" if pace.middle > 0 else "unknown")
    if "fits" in columns:
        cells.append(chance(each.estimate.p_valid))
    if "time" in columns:
        cells.append("-" if each.runtime_s is None else duration_words(each.runtime_s.middle))
    if "GPU-h" in columns:
        cells.append("-" if each.gpu_hours is None else number(each.gpu_hours.middle))
    if "cost" in columns:
        cells.append("-" if each.cost is None else dollars(each.cost.middle))
    if "on time" in columns:
        cells.append("-" if each.on_time is None else _on_time(each.on_time))
    return cells


def _on_time(share: float) -> str:
    colour = "green" if share >= SURE_ENOUGH else "yellow" if share >= 0.5 else "red"
    return f"[{colour}]{percentage(share)}[/]"


def _show_evidence(screen: Console, advice: Advice) -> None:
    fit = advice.fit
    if fit is None:
        return
    memory = fit.estimate.memory_gb
    if memory.middle > 0:
        screen.print(
            f"Peak memory of one GPU: {between(memory, '.1f')} GB of {fit.capacity_gb:.1f} GB. "
            f"{_basis(advice)}"
        )
        screen.print()
    if fit.parts:
        screen.print(parts_table(fit))
        screen.print()
    if advice.time:
        total = sum(term.value for term in advice.time)
        terms = sorted(advice.time, key=lambda term: -term.value)
        words = ", ".join(
            f"{term.name} {term.value:.3g} s" for term in terms if term.value > 0.005 * total
        )
        screen.print(f"Time of a micro-step: {escape(words)}; parts of it overlap.")
        screen.print()
    if fit.evidence:
        screen.print(evidence_table(fit.evidence))
    else:
        screen.print("No similar run was measured: the estimate is from physics alone.")
    screen.print()


def _basis(advice: Advice) -> str:
    chosen = advice.chosen
    if chosen is None:
        return ""
    estimate = chosen.estimate
    if estimate.measured:
        return "This exact configuration was measured."
    runs = "run" if estimate.support == 1 else "runs"
    near = f"{estimate.support} similar measured {runs}" if estimate.support else "no similar run"
    return f"The estimate ({estimate.source}) is based on {near}."


def _lesson_words(advice: Advice, probe: str | None) -> str:
    lesson = advice.lesson
    if lesson is None or advice.sure is None:
        return "The value of one more measurement is unknown: there is nothing to compare with."
    sure = f"The first is the best of these with a probability of {percentage(lesson.sure)}"
    small = lesson.gain < WORTH_A_RUN and lesson.sure_after - lesson.sure < 0.02
    if small:
        return f"{sure}; a single measurement is unlikely to change that."
    cost = "" if lesson.cost is None else f", about {dollars(max(0.01, lesson.cost))}"
    about = advice.candidates[lesson.about].configuration
    which = "the first" if lesson.about == 0 else f"number {lesson.about + 1}, {shortly(about)}"
    better = lesson.sure_after - lesson.sure >= 0.01
    surer = f"raise that to {percentage(lesson.sure_after)} and " if better else ""
    return (
        f"[bold]One more measurement:[/] {sure}. A run of {escape(which)} for "
        f"{duration_words(lesson.seconds)}{cost} would {surer}improve the choice by "
        f"{lesson.gain:.1%} on average:\n"
        f"{_how(lesson, probe)}"
    )


def _how(lesson: Lesson, probe: str | None) -> str:
    each = lesson.run
    if each.num_gpus > 1:
        return (
            f"  [cyan]{escape(shortly(each))}, {each.tokens_per_sample} tokens[/], a few minutes "
            "with your trainer; then import the run with 'duetune history import'."
        )
    file = probe or "probe.yaml"
    commands = (
        f"  [cyan]duetune profile {escape(file)} --count 1 --out probe.jsonl[/]\n"
        f"  [cyan]duetune history import probe.jsonl[/]\n"
        f"  [dim]{escape(shortly(each))}, {each.tokens_per_sample:,} tokens"
    )
    return f"{commands}[/]" if probe else f"{commands}; --probe {file} writes that file[/]"


def _show_nothing(screen: Console, advice: Advice) -> None:
    screen.print("[bold red]Nothing fits.[/]")
    if advice.note:
        screen.print(f"{escape(advice.note[:1].upper() + advice.note[1:])}.")
    screen.print()
    if advice.fit is None:
        return
    each = advice.fit.configuration
    screen.print(
        f"Nearest: {escape(shortly(each))} (probability {percentage(advice.fit.estimate.p_valid)})."
    )
    screen.print()
    show_fit(screen, advice.fit)
