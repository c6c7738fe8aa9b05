"""What a Trainer counts besides the loss, over all members: TRL's metrics, tokens and operations.

TRL keeps a list of numbers per metric until the next log (rewards, margins, entropy), and each
member adds those of its own microbatches. After a step every member has the numbers of all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import Trainer

# Members exchange texts of this many bytes. Metrics that need more stay each member's own.
_BYTES = 1 << 14
_TOKENS = "num_tokens"


class StepCounts(msgspec.Struct, frozen=True):
    """What one member has counted in one step.

    - ``sums``, ``counts``: the finite numbers added to each metric.
    - ``totals``: by how much the running totals have grown.
    """

    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    totals: tuple[float, ...] = ()


class TrainerMetrics:
    """The metrics of a Trainer in one step: ``begin``, then compute, then ``own`` and ``take``."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._lists: dict[str, list[float]] = {}
        self._totals: tuple[float, ...] = ()

    def begin(self) -> None:
        """Remember what was there before the step."""
        self._lists = {name: list(values) for name, values in self._shown().items()}
        self._totals = tuple(getattr(owner, name) for owner, name in self._places())

    def undo(self) -> None:
        """Forget what was counted since ``begin``. Called before a step is repeated."""
        shown = self._shown()
        shown.clear()
        shown.update({name: list(values) for name, values in self._lists.items()})
        self._set_totals(self._totals)

    def own(self) -> torch.Tensor:
        """Return what this member has counted since ``begin``, as bytes to send."""
        added = {
            name: [value for value in values[self._known(name) :] if math.isfinite(value)]
            for name, values in self._shown().items()
            if name != _TOKENS
        }
        totals = tuple(
            float(getattr(owner, name)) - before
            for (owner, name), before in zip(self._places(), self._totals, strict=True)
        )
        counts = StepCounts(
            {name: math.fsum(values) for name, values in added.items() if values},
            {name: len(values) for name, values in added.items() if values},
            totals,
        )
        text = msgspec.json.encode(counts)
        if len(text) > _BYTES:
            text = msgspec.json.encode(StepCounts(totals=totals))
        return torch.frombuffer(bytearray(text.ljust(_BYTES)), dtype=torch.uint8)

    def take(self, parts: Sequence[torch.Tensor]) -> None:
        """Replace what was counted since ``begin`` by what all members have sent."""
        found = [
            msgspec.json.decode(part.cpu().numpy().tobytes(), type=StepCounts) for part in parts
        ]
        shown = self._shown()
        for name in sorted({name for each in found for name in each.counts}):
            count = sum(each.counts.get(name, 0) for each in found)
            mean = math.fsum(each.sums.get(name, 0.0) for each in found) / count
            shown[name] = [*self._lists.get(name, ()), *[mean] * count]
        grown = [
            math.fsum(numbers) for numbers in zip(*(each.totals for each in found), strict=True)
        ]
        self._set_totals(
            [before + type(before)(more) for before, more in zip(self._totals, grown, strict=True)]
        )
        if shown or self._lists:
            own = getattr(self._trainer, "_total_train_tokens", 0)
            shown[_TOKENS] = [own or self._trainer.state.num_input_tokens_seen]

    def _known(self, name: str) -> int:
        return len(self._lists.get(name, ()))

    def _shown(self) -> dict[str, list[float]]:
        """Return TRL's lists, which it averages at the next log; nothing without TRL."""
        kept = getattr(self._trainer, "_metrics", None)
        found = kept.get("train") if isinstance(kept, dict) else None
        return found if isinstance(found, dict) else {}

    def _places(self) -> Iterator[tuple[object, str]]:
        """Yield owner and name of the totals that the Trainer and TRL keep."""
        yield self._trainer, "current_flos"
        yield self._trainer.state, "num_input_tokens_seen"
        if hasattr(self._trainer, "_total_train_tokens"):
            yield self._trainer, "_total_train_tokens"

    def _set_totals(self, values: Sequence[float]) -> None:
        for (owner, name), value in zip(self._places(), values, strict=True):
            setattr(owner, name, value)
