"""The plan of a job on screen: how it is trained, its cost and its finish time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.markup import escape

from duetune.cli.context import duration_words
from duetune.cli.tables import console, new_table
from duetune.simulate.summary import dollars

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.quote_document import QuoteDocument, QuoteLine
    from duetune.jobs.submit import PreparedJob
    from duetune.jobs.training_settings import TrainingSetting

IN_BATCH = {"per_device_train_batch_size", "gradient_accumulation_steps"}
COLOURS = {"refused": ("red", "Would fail"), "warning": ("yellow", "Warning")}
ROLES = {
    "chosen": "duetune",
    "on_demand_only": "on-demand only",
    "spot_only": "spot only",
}


def show_plan(prepared: PreparedJob) -> None:
    """Print the plan, for ``duetune plan`` and before ``duetune launch`` asks."""
    screen = console()
    spec, quote = prepared.spec, prepared.quote.document
    what = f"{spec.model} on {spec.dataset}" if spec.run is None else "own command"
    screen.print(f"[bold]{escape(spec.name)}[/]: {escape(what)}")
    screen.print()
    screen.print(_training_table(prepared.plan, prepared.settings))
    screen.print()
    screen.print(_quote_table(quote))
    screen.print()
    for sentence in _sentences(prepared, quote):
        screen.print(sentence)


def show_rest(job: str, quote: QuoteDocument) -> None:
    """Print the quote for the rest of a job, before ``duetune amend`` asks."""
    screen = console()
    screen.print(f"[bold]{escape(job)}[/]: the rest of the job on the new terms")
    screen.print(_quote_table(quote))
    for sentence in _terms_sentences(quote, budget="budget left"):
        screen.print(sentence)


def _training_table(chosen: TrainingPlan, settings: Sequence[TrainingSetting]) -> Table:
    """Return how the job is trained: what was chosen or is the default, and why."""
    table = new_table("training", "", "why", left=("training", "", "why"))
    rows: list[tuple[str, str, str]] = [
        ("accelerators", _gpus(chosen), chosen.reasons.get("accelerator", "")),
        ("speed", _speed(chosen), _grounds(chosen)),
    ]
    if chosen.memory_gb is not None:
        terms = sorted(chosen.memory_terms.items(), key=lambda term: -term[1])[:3]
        words = ", ".join(f"{name} {size:.2g}" for name, size in terms)
        rows.append(("memory", _memory(chosen), words))
    if settings:
        batch = f"{chosen.global_batch} = {chosen.accumulation} x {chosen.microbatch}"
        rows.append(("batch", batch, chosen.reasons.get("microbatch", "")))
        rows += [
            (each.name, setting_words(each.value), each.origin)
            for each in settings
            if each.name not in IN_BATCH
        ]
    else:
        rows.append(("steps", f"{chosen.total_steps}", chosen.reasons.get("total_steps", "")))
    for name, value, why in rows:
        table.add_row(name, escape(value), f"[dim]{escape(why)}[/]")
    return table


def setting_words(value: bool | float | str | tuple[str, ...]) -> str:
    """Return the value of a setting as a spec would have it."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(value)
        case str():
            return value
        case _:
            return f"{value:g}"


def _gpus(chosen: TrainingPlan) -> str:
    counts = (
        f"{chosen.min_gpus}"
        if chosen.min_gpus == chosen.max_gpus
        else f"{chosen.min_gpus} to {chosen.max_gpus}"
    )
    if chosen.gpus_per_member == 1:
        return f"{chosen.accelerator}: {counts}"
    plural = "s" if chosen.max_gpus > 1 else ""
    return f"{chosen.accelerator}: {counts} member{plural} of {chosen.gpus_per_member} GPUs"


def _speed(chosen: TrainingPlan) -> str:
    least, most, gpus = chosen.min_gpus, chosen.max_gpus, chosen.gpus_per_member
    step = _two_digits(chosen.step_s[least])
    alone = f"{step} s per step on {least * gpus}{_between(chosen, least)}"
    if most == least:
        return alone
    step = _two_digits(chosen.step_s[most])
    return f"{alone}, {step} s on {most * gpus}{_between(chosen, most)}"


def _between(chosen: TrainingPlan, gpus: int) -> str:
    quick, slow = chosen.step_s_quick[gpus], chosen.step_s_slow[gpus]
    return f" ({_two_digits(quick)} to {_two_digits(slow)})" if quick < slow else ""


def _two_digits(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:,.0f}"


def _grounds(chosen: TrainingPlan) -> str:
    """Return what the speed is based on: in full for knowledge, else only its name."""
    if chosen.tokens_per_s is None:
        return chosen.basis.value
    return chosen.reasons["step_s"]


def _memory(chosen: TrainingPlan) -> str:
    size = f"{chosen.memory_gb:.1f} GB per GPU"
    if chosen.memory_gb_low is not None and chosen.memory_gb_high is not None:
        size += f" ({chosen.memory_gb_low:.1f} to {chosen.memory_gb_high:.1f})"
    # Rounded down: 100% would promise that it fits.
    return (
        size if chosen.p_fits is None else f"{size}, fits with {math.floor(100 * chosen.p_fits)}%"
    )


def _quote_table(quote: QuoteDocument) -> Table:
    table = new_table(
        *("", "cost", "80% range", "finished after", "90% by", "on time", "mean GPUs"),
        left=("",),
    )
    for line in quote.lines:
        style = "bold" if line.role.value == "chosen" else ""
        table.add_row(
            ROLES[line.role.value],
            dollars(line.cost),
            f"{dollars(line.cost_low)} to {dollars(line.cost_high)}",
            _after(line.finish_at, quote),
            _after(line.finish_late_at, quote),
            _on_time(line),
            f"{line.gpus:.1f}",
            style=style,
        )
    if quote.bound is not None:
        known = f"[dim]{dollars(quote.bound.cost)}[/]"
        table.add_row("[dim]with a known market[/]", known, "", "", "", "", "")
    return table


def _on_time(line: QuoteLine) -> str:
    colour = "green" if line.on_time >= 0.9 else "yellow" if line.on_time >= 0.5 else "red"
    return f"[{colour}]{line.on_time:.0%}[/]"


def _after(moment: float | None, quote: QuoteDocument) -> str:
    return "never" if moment is None else duration_words(moment - quote.at)


def _sentences(prepared: PreparedJob, quote: QuoteDocument) -> list[str]:
    cut_s = prepared.terms.deadline_at - quote.deadline_at
    first, *notes = _terms_sentences(quote, cut=cut_s >= 1)
    return [
        first,
        f"Policy {escape(prepared.policy)}: {escape(prepared.chosen)}.",
        *notes,
        *_findings(prepared),
        f"[dim]Based on {quote.scenarios} scenarios from {_past_slots(quote.history_slots)}.[/]",
    ]


def _past_slots(count: int) -> str:
    if not count:
        return "the present slot alone"
    return "1 past slot" if count == 1 else f"{count} past slots"


def _terms_sentences(
    quote: QuoteDocument, *, budget: str = "budget", cut: bool = False
) -> list[str]:
    """Return deadline and money in one sentence, then the notes. ``cut``: the deadline is within a
    slot.
    """
    due = duration_words(quote.deadline_at - quote.at)
    due += ", the last end of a slot before the deadline" if cut else ""
    last = f"stopped after {duration_words(quote.hard_deadline_at - quote.at)}"
    if quote.soft:
        last = "soft deadline: after it the job goes on at the least cost"
    slot = duration_words(quote.slot_s)
    money = f"value {dollars(quote.value)}"
    money += "" if quote.budget is None else f", {budget} {dollars(quote.budget)}"
    return [
        f"Due in {due} ({last}), {money}; one decision every {slot}.",
        *(f"[yellow]Note:[/] {escape(note)}." for note in quote.notes),
    ]


def _findings(prepared: PreparedJob) -> Iterator[str]:
    """Yield what is wrong with the job: first what ``launch`` refuses, then the warnings."""
    checked = prepared.preflight
    for each in sorted(checked.findings, key=lambda each: each.severity):
        colour, word = COLOURS[each.severity.value]
        yield f"[{colour}]{word}:[/] {escape(str(each))}."
    if checked.data is not None and checked.data.sampled < checked.data.rows:
        sampled, rows = checked.data.sampled, checked.data.rows
        yield f"[dim]Lengths were checked on {sampled:,} of {rows:,} rows.[/]"
