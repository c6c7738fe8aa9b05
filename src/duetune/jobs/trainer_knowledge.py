"""Configuration knowledge for duetune's own trainer: memory and pace as it packs and shares rows.

``fits``, ``recommend``, ``plan``, ``launch`` and exports all ask ``TrainerKnowledge``, so they give
the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.jobs.trainer_facts import (
    ATTENTION,
    NO_RANK,
    OPTIONS,
    WHOLE,
    gpus_per_member,
    in_members,
)
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configurations,
    Interconnect,
    Method,
    Sharding,
)
from duetune.knowledge.estimate import MEMORY, RULE
from duetune.knowledge.ranking import exceeding
from duetune.knowledge.sources.decorators import Decorator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimates
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

UNEVEN = 1.25
"""A step's examples may have so many times the tokens of usual ones."""


class Packing(msgspec.Struct, frozen=True):
    """How a job's rows fill a microbatch: ``tokens_per_row`` is the mean length of an example, if
    known, ``budget`` the most tokens of a microbatch, if given, ``fused`` whether fused kernels may
    be used.
    """

    tokens_per_row: float | None = None
    budget: int | None = None
    fused: bool = True

    @classmethod
    def of(cls, spec: JobSpec, tokens_per_row: float | None = None) -> Packing:
        """Return what a job spec says, and the length of its examples."""
        training = spec.training
        fused = training.use_liger_kernel is not False
        return cls(tokens_per_row, training.max_tokens_per_microbatch, fused)

    def tokens(self, rows: Configurations) -> NDArray[np.float64]:
        """Return the most tokens of one GPU's microbatch: all examples of it at their longest, or
        less if the examples of a whole step have fewer.
        """
        most, longest = rows.per_gpu_tokens, rows.number("tokens_per_sample")
        if self.budget is not None:
            most = np.full(len(rows), float(self.budget))
        elif self.tokens_per_row is not None:
            examples = rows.number("batch_size") * rows.number("grad_accum")
            usual = np.maximum(1.0, np.round(np.minimum(self.tokens_per_row, longest)))
            most = np.maximum(longest, np.minimum(most, np.ceil(UNEVEN * examples * usual)))
        return np.maximum(1.0, np.floor(most))


PLAIN = Packing()
"""Rows about which nothing is known."""


class TrainerKnowledge(Decorator):
    """Configuration knowledge for duetune's own trainer; it decorates ``source``.

    The trainer packs rows, so ``source`` is asked about packed rows. Each member holds the whole
    model and the gradients of what is trained, so its GPUs need the same memory in a group of any
    size. ``ran_out`` are configurations that ran out of memory here; a configuration that needs as
    much does not fit. Rows of other trainers are answered by ``source`` unchanged.
    """

    def __init__(
        self,
        source: KnowledgeSource,
        software: str,
        ran_out: Sequence[Configuration] = (),
        packing: Packing = PLAIN,
    ) -> None:
        super().__init__(source, "trainer")
        self.packing = packing
        self._software = software
        rows = packed_rows(Configurations.of(ran_out)) if ran_out else None
        self._ran_out = () if rows is None else tuple(_alone(rows))

    @property
    def name(self) -> str:
        """The name of the source behind it."""
        return self.source.name

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates, with memory as the trainer needs it on one GPU."""
        found = self.source.query(configurations)
        own = np.flatnonzero(self._own(configurations) & (found.cause != RULE))
        if not len(own):
            return found
        packed = packed_rows(configurations.take(own), self.packing)
        pace = self._pace(packed)
        alone = _alone(packed)
        fit = self.source.query(alone)
        out = exceeding(alone, self._ran_out)
        result = found.take(np.arange(len(found)))
        result.p_valid[own] = np.where(out, 0.0, fit.p_valid)
        result.cause[own] = np.where(out, MEMORY, fit.cause)
        result.memory_gb[own] = fit.memory_gb
        result.measured[own] = pace.measured & fit.measured
        result.tokens_per_s[own] = pace.tokens_per_s
        result.support[own] = pace.support
        result.extrapolated[own] = pace.extrapolated
        return result

    def _pace(self, packed: Configurations) -> Estimates:
        """Return estimates for the pace of all GPUs together.

        Several sharded members have the pace of one times their number, less what as many single
        GPUs lose to the network between nodes.
        """
        found = self.source.query(packed)
        sharded = np.flatnonzero(packed.is_("sharding", Sharding.HYBRID))
        if len(sharded):
            rows = packed.take(sharded)
            members, one = rows.number("num_nodes"), np.ones(len(rows))
            member = self.source.query(_placed(rows, gpus_per_member(rows), one))
            group = self.source.query(_placed(rows, members, members)).tokens_per_s[:, 1]
            single = self.source.query(_placed(rows, one, one)).tokens_per_s[:, 1]
            found.tokens_per_s[sharded] = member.tokens_per_s * (group / single)[:, None]
        return found

    def asked(self, configurations: Configurations) -> Configurations:
        """Return the configurations whose memory is looked up: those of one member."""
        own = self._own(configurations).all()
        return _alone(packed_rows(configurations, self.packing)) if own else configurations

    def ran_out(self, configuration: Configuration) -> bool:
        """Return whether a run that needed no more memory ran out of it."""
        rows = packed_rows(Configurations.of([configuration]), self.packing)
        return bool(exceeding(_alone(rows), self._ran_out)[0])

    def _own(self, rows: Configurations) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = rows.is_("software", self._software) & in_members(rows)
        for field, words in OPTIONS.items():
            found &= rows.is_(field, *words)
        found &= ~rows.is_("method", Method.FULL) | rows.is_("precision", *WHOLE)
        found &= rows.number("fast_moe") == 0
        return found


def packed_rows(rows: Configurations, packing: Packing = PLAIN) -> Configurations:
    """Return configurations of our trainer as it runs them: rows of a microbatch lie end to end,
    with fused kernels. Those that say how rows are packed stay as they are.
    """
    padded = ~rows.packed
    columns = {
        "batch_size": np.where(padded, rows.number("num_gpus"), rows.number("batch_size")),
        "tokens_per_microbatch": np.where(padded, packing.tokens(rows), rows.per_gpu_tokens),
        "fast_kernels": np.where(padded, 1.0 * packing.fused, rows.number("fast_kernels")),
        "attention": np.zeros(len(rows), np.int64),
    }
    labels = {**rows.labels, "attention": (Attention.VARLEN.value,)}
    return Configurations({**rows.columns, **columns}, labels)


def _alone(rows: Configurations) -> Configurations:
    """Return each packed configuration as one member alone runs it."""
    one, full = np.ones(len(rows)), rows.is_("method", Method.FULL)
    rows = _placed(rows, gpus_per_member(rows), one)
    columns = {
        "grad_accum": one,
        "lora_rank": np.where(full, float(NO_RANK), rows.number("lora_rank")),
        "lora_targets": np.where(full, 0, rows.columns["lora_targets"] + 1).astype(np.int64),
    }
    labels = {**rows.labels, "lora_targets": (ATTENTION, *rows.labels["lora_targets"])}
    return Configurations({**rows.columns, **columns}, labels)


def _placed(
    rows: Configurations, gpus: NDArray[np.float64], nodes: NDArray[np.float64]
) -> Configurations:
    """Return configurations on other GPUs, each of which computes as before. The GPUs of a node
    share one copy of the model.
    """
    several = nodes > 1
    columns = {
        "num_gpus": gpus,
        "num_nodes": nodes,
        "batch_size": np.maximum(1.0, np.floor(rows.per_gpu_batch)) * gpus,
        "sharding": np.where(several, 1, np.where(gpus > 1, 2, 0)),
        "interconnect": np.where(several, 1, 0),
    }
    labels: dict[str, tuple[str, ...]] = {
        "sharding": (Sharding.NONE, Sharding.DDP, Sharding.FSDP),
        "interconnect": (Interconnect.AUTO, Interconnect.TCP),
    }
    return Configurations({**rows.columns, **columns}, {**rows.labels, **labels})
