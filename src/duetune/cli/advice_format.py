"""How ``fits``, ``recommend`` and ``history`` show configurations, chances and evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from duetune.knowledge.advice import Fit, MemoryPart
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Interval
    from duetune.knowledge.sources.knowledge_source import Neighbour

FITTING = "Fitting the model to measured runs; the fit is kept for the next time"
_BAR = 24
NARROW = 80
"""Screens with fewer columns get tables with the most important columns only."""


def shortly(configuration: Configuration, *, gpu: bool = True) -> str:
    """Describe what differs between candidates of a job; with ``gpu=False`` without the GPUs."""
    each = configuration
    words = [f"{each.num_gpus} x {each.gpu_model}"] if gpu else []
    words.append(f"batch {each.batch_size}")
    if each.grad_accum > 1:
        words[-1] += f" x {each.grad_accum}"
    if each.num_gpus > each.num_nodes > 1 and each.sharding.value == "hybrid":
        words.append(f"members of {each.num_gpus // each.num_nodes}")
    elif each.num_gpus > 1:
        words.append(str(each.sharding))
    if each.grad_checkpoint:
        words.append("checkpointing" if gpu else "ckpt")
    return ", ".join(words)


def number(value: float) -> str:
    """Return a number with three digits: ``812``, ``7.41k``, ``77.5k``, ``1.20M``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:#.3g}".rstrip(".") + unit
    return f"{value:.3g}"


def between(interval: Interval, form: str = "") -> str:
    """Return an interval as ``middle (low to high)``."""
    if not interval.middle > 0:  # NaN, too
        return "unknown"
    low, middle, high = (format(each, form) if form else number(each) for each in interval)
    return f"{middle} ({low} to {high})"


def chance(share: float) -> str:
    """Return the probability that a configuration fits, in the colour of the verdict."""
    from duetune.knowledge.advice import percentage
    from duetune.knowledge.estimate import FITS

    colour = "green" if share >= FITS else "yellow" if share > 1 - FITS else "red"
    return f"[{colour}]{percentage(share)}[/]"


def parts_table(fit: Fit) -> Table:
    """Return a table of the parts of one GPU's memory, with a bar for each part at the peak."""
    from rich.markup import escape

    from duetune.cli.tables import new_table

    table = new_table("memory of one GPU", "GB", "at the peak", "", left=("memory of one GPU", ""))
    for part in fit.parts:
        table.add_row(
            escape(part.name), _gb(part.gb), _gb(part.at_peak_gb), f"[cyan]{_bar(part, fit)}[/]"
        )
    peak = sum(part.at_peak_gb for part in fit.parts)
    table.add_row("peak", "", _gb(peak), f"[dim]of {fit.capacity_gb:.1f}[/]", style="bold")
    return table


def _gb(size: float) -> str:
    return "-" if abs(size) < 0.005 else f"{size:.2f}" if abs(size) < 10 else f"{size:.1f}"


def _bar(part: MemoryPart, fit: Fit) -> str:
    return "█" * min(_BAR, round(_BAR * max(0.0, part.at_peak_gb) / fit.capacity_gb))


def evidence_table(near: Sequence[Neighbour]) -> Table:
    """Return a table of the nearest measured runs, and how their configurations differ."""
    from rich.markup import escape

    from duetune.cli.tables import new_table

    table = new_table(
        *("nearest measured runs", "tokens/s", "peak GB", "difference"),
        left=("nearest measured runs", "difference"),
    )
    for each in near:
        run = each.observation
        configuration = run.configuration
        size = f"{configuration.batch_size} x {configuration.tokens_per_sample}"
        cap = f" of {configuration.memory_cap_gb:g} GB" if configuration.memory_cap_gb else ""
        gpu = f"{configuration.num_gpus} x {configuration.gpu_model}{cap}"
        model = configuration.model.rsplit("/", 1)[-1]
        pace = number(run.tokens_per_s) if run.tokens_per_s else "-"
        if run.outcome.value == "oom":
            pace = "[red]out of memory[/]"
        peak = "-" if run.peak_memory_gb is None else f"{run.peak_memory_gb:.1f}"
        differences = _differences(each)
        differs = ", ".join(differences[:4])
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        table.add_row(
            escape(f"{model} {configuration.method}, {gpu}, {size}"),
            pace,
            peak,
            f"[dim]{escape(differs)}{more}[/]",
        )
    return table


_IN_THE_RUN = frozenset(
    (
        *("model", "method", "gpu_model", "num_gpus", "batch_size", "tokens_per_sample"),
        *("software", "memory_cap_gb"),
    )
)
_SHORT = {"grad_checkpoint": "checkpointing", "lora_targets": "on", "lora_rank": "rank"}


def _differences(near: Neighbour) -> list[str]:
    """Return the fields that differ, without those that the first column shows."""
    found = []
    for field in near.differs:
        if field not in _IN_THE_RUN:
            value = getattr(near.observation.configuration, field)
            words = "on" if value is True else "off" if value is False else value
            found.append(f"{_SHORT.get(field, field.replace('_', ' '))} {words}")
    return found
