"""Rules that every configuration must satisfy before it can start; memory is not among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.expressions import parse_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on a configuration, written as data.

    - ``expression``: the condition, see ``expressions``.
    - ``meaning``: the sentence shown to a user when the condition does not hold.
    """

    expression: str
    meaning: str = ""

    def __post_init__(self) -> None:
        parse_expression(self.expression)

    @property
    def fields(self) -> frozenset[str]:
        """Return the fields that the condition depends on."""
        return parse_expression(self.expression).fields

    def holds(self, configurations: Configurations) -> NDArray[np.bool_]:
        """Return a mask of the configurations for which the condition holds."""
        return parse_expression(self.expression).holds(configurations)

    def __str__(self) -> str:
        return self.meaning or self.expression


# There is no rule that gptq-lora needs a quantised checkpoint: public tables give the name of the
# original model instead of the checkpoint.
RULES: tuple[Constraint, ...] = (
    Constraint(
        "num_gpus >= 1 and num_nodes >= 1 and batch_size >= 1 and tokens_per_sample >= 1"
        " and grad_accum >= 1",
        "GPUs, nodes, sequences, tokens and accumulation steps are 1 or more",
    ),
    Constraint("batch_size % num_gpus == 0", "every GPU has the same number of sequences"),
    Constraint("num_gpus % num_nodes == 0", "every node has the same number of GPUs"),
    Constraint(
        "fast_moe == 0 or num_gpus % fast_moe == 0",
        "the expert-parallel degree divides the number of GPUs",
    ),
    Constraint(
        "fast_moe == 0 or experts % fast_moe == 0",
        "the expert-parallel degree divides the number of experts",
    ),
    Constraint(
        'num_gpus == 1 or sharding != "none"',
        "several GPUs need a sharding mode such as ddp or fsdp",
    ),
    Constraint(
        'method == "full" or lora_rank >= 1 or method == "pt"',
        "the rank of an adapter is 1 or more",
    ),
)


def broken(configurations: Configurations, rules: Sequence[Constraint] = RULES) -> NDArray[np.int8]:
    """Return the index of the first rule that each configuration breaks, or -1 if it breaks
    none.
    """
    first = np.full(len(configurations), -1, np.int8)
    for index in reversed(range(len(rules))):
        first[~rules[index].holds(configurations)] = index
    return first
