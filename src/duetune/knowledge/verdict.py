"""Does a configuration fit? This module says what takes the memory, what would make it fit, and how
much room is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.advice import Change, Fit, MemoryPart, Verdict, estimate_assumptions
from duetune.knowledge.arithmetic import GB, peak_bytes
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configurations,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.configurations.configuration_rules import RULES, broken
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.estimate import FITS
from duetune.knowledge.facts.gpus import GPUS, gpu_name
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.model.features import Physics, Reckoned
from duetune.knowledge.sources.decorators import Decorator
from duetune.knowledge.sources.learned import RegressionSource
from duetune.knowledge.sources.nearest import NearestSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.history import History
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource, Neighbour

EVIDENCE = 3
FAR = 3.5
"""Measured runs within this many doublings are shown as evidence."""

GPUS_OF_A_NODE = 8
_LONGEST = 2**17
# All numbers up to 64; beyond that, four steps per doubling.
_SEQUENCES = sorted({*range(1, 65), *(round(2 ** (power / 4)) for power in range(24, 53))})
_LENGTHS = sorted({max(64, round(2 ** (power / 8)) // 64 * 64) for power in range(48, 137)})
_FROZEN = {Precision.BF16_MIXED: Precision.BF16, Precision.FP16_MIXED: Precision.FP16}
"""Precision of weights that are not trained: they need not be kept in 32 bits."""

_SMALLER = {Method.FULL: Method.LORA, Method.LORA: Method.QLORA}


class Fitting:
    """Answers "does it fit" for one source and the history that it rests on."""

    def __init__(self, source: KnowledgeSource, history: History) -> None:
        self._source = source
        self._history = history

    def fit(self, configuration: Configuration) -> Fit:
        """Return the full answer for one configuration; ``duetune fits`` calls this."""
        one = Configurations.of([configuration])
        estimate = self._source.query(one)[0]
        rule = int(broken(one)[0])
        verdict = _verdict(estimate.p_valid)
        capacity = float(Described(one).capacity[0]) / GB
        fit = Fit(
            configuration=configuration,
            verdict=verdict,
            estimate=estimate,
            cause=estimate.cause,
            capacity_gb=capacity,
        )
        if rule >= 0:
            return msgspec.structs.replace(fit, rule=str(RULES[rule]))
        changes = () if verdict is Verdict.YES else self.changes(configuration)
        return msgspec.structs.replace(
            fit,
            parts=self._parts(configuration, estimate.memory_gb.middle),
            changes=changes,
            nearest=None if verdict is Verdict.YES or changes else self._nearest(configuration),
            room=self.room(configuration) if verdict is Verdict.YES else (),
            evidence=self.evidence(configuration),
            assumptions=estimate_assumptions(
                _asked(self._source, one)[1][0], estimate, self._history
            ),
        )

    def evidence(self, configuration: Configuration) -> tuple[Neighbour, ...]:
        """Return the measured runs nearest to a configuration."""
        near = NearestSource(self._history, count=EVIDENCE, cut_off=FAR)
        return near.neighbours(configuration)

    def room(self, configuration: Configuration) -> tuple[Change, ...]:
        """Return larger settings, or a smaller card, that would fit too."""
        found = []
        for field, options in (
            ("batch_size", _batches(configuration)),
            ("tokens_per_sample", _lengths(configuration)),
        ):
            most = self._most(options)
            if most and getattr(most.configuration, field) > getattr(configuration, field):
                found.append(most)
        if configuration.grad_checkpoint:
            plain = configuration.replace(grad_checkpoint=False)
            found += self._first([("no gradient checkpointing (faster)", plain)])
        smaller = self._first(_cards(configuration))
        mine = gpu_name(configuration.gpu_model)
        if smaller and mine and _memory(smaller[0].configuration.gpu_model) < _memory(mine):
            found += smaller
        return tuple(found)

    def changes(self, configuration: Configuration) -> tuple[Change, ...]:
        """Return single changes, each of which makes the configuration fit."""
        each = configuration
        found = [self._most(_batches(each)), self._most(_lengths(each))]
        result = [change for change in found if change is not None]
        for options in (*([one] for one in _savings(each)), _spread(each), _cards(each)):
            result += self._first(options)
        return tuple(result)

    def _nearest(self, configuration: Configuration) -> Change:
        """Combine all changes that save memory: on these GPUs, on a full node, and on the largest
        card.

        Returns the first of them that fits, or the last one if none does.
        """
        least = configuration.replace(batch_size=configuration.num_gpus)
        for _, changed in _savings(least):
            least = least.replace(
                grad_checkpoint=True,
                method=changed.method,
                precision=changed.precision,
                optimiser=changed.optimiser,
                attention=changed.attention,
            )
        if least.method is Method.LORA:
            least = least.replace(method=Method.QLORA)
        nodes = -(-least.num_gpus // GPUS_OF_A_NODE)
        most = least.replace(
            num_gpus=nodes * GPUS_OF_A_NODE,
            num_nodes=nodes,
            batch_size=nodes * GPUS_OF_A_NODE,
            sharding=Sharding.FSDP,
        )
        largest = max(GPUS, key=lambda name: GPUS[name].memory_gb)
        options = [
            ("all of these changes", least),
            (f"all of these changes on {most.num_gpus} GPUs with fsdp", most),
            (
                f"all of these changes on {most.num_gpus} x {largest} with fsdp",
                most.replace(gpu_model=largest, memory_cap_gb=0.0),
            ),
        ]
        changes = self._estimated(options)
        return next((change for change in changes if change.p_valid >= FITS), changes[-1])

    def _most(self, options: Sequence[tuple[str, Configuration]]) -> Change | None:
        """Return the last option before the first one that does not fit, or None if the first does
        not fit.
        """
        changes = self._estimated(options)
        fitting = next(
            (place for place, change in enumerate(changes) if change.p_valid < FITS), len(changes)
        )
        return changes[fitting - 1] if fitting else None

    def _first(self, options: Sequence[tuple[str, Configuration]]) -> list[Change]:
        """Return the first option that fits, as a list of at most one."""
        changes = self._estimated(options)
        return [change for change in changes if change.p_valid >= FITS][:1]

    def _estimated(self, options: Sequence[tuple[str, Configuration]]) -> list[Change]:
        """Return the options with their estimates, in one query."""
        if not options:
            return []
        rows = Configurations.of([configuration for _, configuration in options])
        estimates = self._source.query(rows)
        capacity = Described(rows).capacity / GB
        return [
            Change(
                what=what,
                configuration=configuration,
                p_valid=float(estimates.p_valid[row]),
                memory_gb=float(estimates.memory_gb[row, 1]),
                capacity_gb=float(capacity[row]),
            )
            for row, (what, configuration) in enumerate(options)
        ]

    def _parts(self, configuration: Configuration, peak_gb: float) -> tuple[MemoryPart, ...]:
        """Return the parts of the memory by physics, plus the correction that measured runs add to
        it.
        """
        physics, rows = _physics_of(self._source, Configurations.of([configuration]))
        it = Described(rows)
        terms = Reckoned(it, physics).memory
        peak = float(peak_bytes(it, terms)[0])
        parts = []
        for name, column in terms.items():
            # The peak is built from sums and maxima of terms, so the part of a term that is present
            # at the peak is its derivative.
            more = float(peak_bytes(it, {**terms, name: column * 1.001})[0])
            there = min(float(column[0]), (more - peak) * 1000.0)
            if column[0] > 0:
                parts.append(
                    MemoryPart(name=name, gb=float(column[0]) / GB, at_peak_gb=max(0.0, there) / GB)
                )
        rest = peak_gb - sum(part.at_peak_gb for part in parts)
        if np.isfinite(rest) and abs(rest) > 0.005 * peak_gb:
            parts.append(MemoryPart(name="correction from measured runs", gb=rest, at_peak_gb=rest))
        return tuple(parts)


def _physics_of(source: KnowledgeSource, rows: Configurations) -> tuple[Physics, Configurations]:
    """Return the constants that a source has fitted, and the rows as the source sees them.

    Sources that fit nothing use the default constants.
    """
    source, rows = _asked(source, rows)
    if isinstance(source, RegressionSource):
        return source.model.physics, source.model.alike(rows)
    return Physics(), rows


def _asked(source: KnowledgeSource, rows: Configurations) -> tuple[KnowledgeSource, Configurations]:
    """Return the source behind all decorators, and the rows that it is asked about."""
    while isinstance(source, Decorator):
        rows, source = source.asked(rows), source.source
    return source, rows


def _verdict(p_valid: float) -> Verdict:
    """Return the verdict for a probability to fit."""
    if p_valid >= FITS:
        return Verdict.YES
    return Verdict.NO if p_valid <= 1.0 - FITS else Verdict.UNSURE


def _memory(gpu: str) -> float:
    return GPUS[gpu].memory_gb


def _batches(configuration: Configuration) -> list[tuple[str, Configuration]]:
    gpus = configuration.num_gpus
    return [
        (f"batch {gpus * size:,}", configuration.replace(batch_size=gpus * size))
        for size in _SEQUENCES
    ]


def _lengths(configuration: Configuration) -> list[tuple[str, Configuration]]:
    facts = model_facts(configuration.model)
    longest = (facts.context if facts else None) or _LONGEST
    return [
        (f"sequences of {length:,} tokens", configuration.replace(tokens_per_sample=length))
        for length in sorted({*_LENGTHS, longest})
        if length <= longest
    ]


def _savings(configuration: Configuration) -> list[tuple[str, Configuration]]:
    """Return changes that save memory with the same work on the same GPUs."""
    each = configuration
    found = []
    if not each.grad_checkpoint:
        found.append(("gradient checkpointing", each.replace(grad_checkpoint=True)))
    if each.attention is Attention.EAGER:
        found.append(("attention sdpa", each.replace(attention=Attention.SDPA)))
    if each.method is Method.FULL and each.optimiser is Optimiser.ADAMW:
        changed = each.replace(optimiser=Optimiser.ADAMW_8BIT)
        found.append((f"optimiser {changed.optimiser}", changed))
    smaller = _SMALLER.get(each.method)
    if smaller is not None:
        changed = each.replace(
            method=smaller,
            lora_rank=max(1, each.lora_rank),
            precision=_FROZEN.get(each.precision, each.precision),
        )
        what = "train adapters only" if smaller is Method.LORA else "frozen weights in 4 bits"
        found.append((f"method {smaller}: {what}", changed))
    return found


def _spread(configuration: Configuration) -> list[tuple[str, Configuration]]:
    """Return the configuration spread over more GPUs, each with a part of the state."""
    found = []
    for power in range(1, 7):
        gpus = 2**power
        sharded = configuration.sharding is not Sharding.DDP
        if gpus < configuration.num_gpus or (gpus == configuration.num_gpus and sharded):
            continue
        whole = configuration.batch_size % gpus == 0
        found.append(
            (
                f"{gpus} GPUs with fsdp",
                configuration.replace(
                    num_gpus=gpus,
                    num_nodes=max(1, gpus // GPUS_OF_A_NODE),
                    batch_size=configuration.batch_size if whole else gpus,
                    sharding=Sharding.FSDP,
                ),
            )
        )
    return found


def _cards(configuration: Configuration) -> list[tuple[str, Configuration]]:
    """Return the configuration on other GPUs, smallest memory first; ties go to the slower GPU."""
    order = sorted(GPUS, key=lambda name: (GPUS[name].memory_mib, GPUS[name].tflops))
    wide = configuration.precision.startswith("bf16")
    return [
        (f"GPU {name}", configuration.replace(gpu_model=name, memory_cap_gb=0.0))
        for name in order
        if name != configuration.gpu_model and (GPUS[name].bf16 or not wide)
    ]
