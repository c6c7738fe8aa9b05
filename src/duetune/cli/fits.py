"""``duetune fits``: whether a model fits on a GPU, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetune.cli.context import Answer, print_answer, waiting
from duetune.home import Home

if TYPE_CHECKING:
    from rich.console import Console

    from duetune.knowledge.advice import Change, Fit

DOES_NOT_FIT = 1
OTHER = " [dim](with another trainer)[/]"


class FitsAnswer(Answer, frozen=True, kw_only=True):
    """The answer of ``--json``."""

    fits: Fit


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--gpu", required=True, metavar="NAME", help="The GPU, such as A100-80GB, H100 or L40S:4."
)
@click.option("--seq", type=int, metavar="TOKENS", help="Tokens of each sequence.  [default: 1024]")
@click.option(
    "--batch",
    type=int,
    metavar="N",
    help="Sequences at once, over all GPUs.  [default: one per GPU]",
)
@click.option(
    "--method",
    metavar="NAME",
    help="full, lora, qlora, gptq-lora or pt (prompt tuning).  [default: full below 1B parameters "
    "if that fits, else lora]",
)
@click.option("--gpus", type=int, metavar="N", help="Number of GPUs.  [default: 1]")
@click.option(
    "--gpus-per-member",
    type=int,
    metavar="N",
    help="GPUs of one node that share one copy of the model.  [default: as few as it needs]",
)
@click.option(
    "--sharding",
    metavar="NAME",
    help="How GPUs share the state: ddp, fsdp, ...  [default: as duetune's trainer]",
)
@click.option(
    "--precision",
    metavar="NAME",
    help="bf16, fp16, fp32, bf16-mixed or fp16-mixed.  [default: that of duetune's trainer]",
)
@click.option(
    "--optimiser",
    metavar="NAME",
    default="adamw",
    help="adamw, adamw-8bit, paged-adamw, adafactor or sgd.",
)
@click.option(
    "--checkpointing/--no-checkpointing",
    default=True,
    help="Whether activations are recomputed instead of stored.",
)
@click.option("--rank", type=int, metavar="N", help="Rank of the adapters.  [default: 16]")
@click.option(
    "--targets",
    metavar="NAME",
    help="Layers with adapters: all-linear, attention, or such as q_proj+v_proj.  [default: "
    "all-linear]",
)
@click.option(
    "--attention",
    metavar="NAME",
    help="varlen, sdpa, flash or eager.  [default: varlen, as duetune's trainer]",
)
@click.option(
    "--software",
    metavar="NAME",
    help="The trainer, by its name in the history.  [default: duetune's trainer]",
)
@click.option(
    "--memory-gb",
    type=float,
    default=0.0,
    metavar="GB",
    help="Memory to use, if not all of the card is free.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def fits(model: str, as_json: bool, **chosen: object) -> int:
    """Check whether MODEL can be fine-tuned on a GPU, what uses the memory, and what would help.

    MODEL is a known name (llama3.1-8b, Qwen/Qwen3-8B), a folder with a config.json, that file, or a
    name with a size in it. Options that are not given are those of duetune's trainer, so the answer
    is that of 'duetune plan'. Nothing is started. The exit status is 0 if it fits, 1 if it does not
    or if that is not sure.
    """
    import msgspec

    from duetune.cli.advice_format import FITTING
    from duetune.jobs.fit_question import FitQuestion
    from duetune.knowledge.advice import Verdict

    question = msgspec.convert({"model": model, **chosen}, FitQuestion)
    with waiting(FITTING):
        fit = Home().fits(question)
    if as_json:
        print_answer(FitsAnswer(command="fits", fits=fit))
    else:
        _show(fit)
    return 0 if fit.verdict is Verdict.YES else DOES_NOT_FIT


def _show(fit: Fit) -> None:
    from duetune.cli.tables import console

    screen = console()
    screen.print(_headline(fit))
    if fit.rule:
        screen.print(f"It breaks a rule: {fit.rule}.")
        return
    screen.print()
    show_fit(screen, fit)
    for each in fit.assumptions:
        from rich.markup import escape

        screen.print(f"[dim]Assumed: {escape(each)}.[/]")


def _headline(fit: Fit) -> str:
    from rich.markup import escape

    from duetune.knowledge.advice import Verdict, percentage

    words = {
        Verdict.YES: "[bold green]Yes, it fits[/]",
        Verdict.NO: "[bold red]No, it does not fit[/]",
        Verdict.UNSURE: "[bold yellow]Not sure whether it fits[/]",
    }
    each = fit.configuration
    memory = fit.estimate.memory_gb
    gpus = f"{each.num_gpus} x {each.gpu_model}"
    what = f"{each.model}, {each.method}, {each.batch_size} x {each.tokens_per_sample:,} tokens"
    peak = ""
    if memory.middle > 0:
        peak = (
            f"\nPeak memory of one GPU: {memory.middle:.1f} GB (90% range {memory.low:.1f} to "
            f"{memory.high:.1f} GB) of the card's {fit.capacity_gb:.1f} GB"
        )
    return (
        f"{words[fit.verdict]} (probability {percentage(fit.estimate.p_valid)}): "
        f"{escape(what)} on {gpus}{peak}."
    )


def show_fit(screen: Console, fit: Fit) -> None:
    """Print the parts of the memory, what would help or still fit, and similar measured runs."""
    from rich.markup import escape

    from duetune.cli.advice_format import evidence_table, parts_table
    from duetune.knowledge.estimate import FITS

    screen.print(parts_table(fit))
    screen.print()
    if fit.changes or fit.room:
        screen.print(_changes("it would fit with" if fit.changes else "room for", fit))
        screen.print()
    if fit.verdict.value == "yes" and not fit.room:
        screen.print("There is no room for a larger batch or longer sequences.\n")
    if fit.nearest is not None:
        near = fit.nearest
        fits_so = near.p_valid >= FITS
        screen.print(
            f"No single change makes it fit. {escape(near.what[:1].upper() + near.what[1:])} "
            f"(checkpointing, one sequence per GPU, {near.configuration.method}): "
            f"{'it fits' if fits_so else 'it still does not fit'}, "
            f"{near.memory_gb:.1f} of {near.capacity_gb:.1f} GB."
        )
        screen.print()
    if fit.evidence:
        screen.print(evidence_table(fit.evidence))
    else:
        screen.print("No similar run was measured: the estimate is from physics alone.")
    screen.print()


def _changes(title: str, fit: Fit) -> object:
    from rich.markup import escape

    from duetune.cli.advice_format import chance
    from duetune.cli.tables import new_table
    from duetune.jobs.trainer_facts import foreign_fields

    table = new_table(title, "fits", "peak GB", "of", left=(title,))
    each: Change
    for each in fit.changes or fit.room:
        table.add_row(
            escape(each.what) + (OTHER if foreign_fields(each.configuration) else ""),
            chance(each.p_valid),
            f"{each.memory_gb:.1f}",
            f"{each.capacity_gb:.1f}",
        )
    return table
