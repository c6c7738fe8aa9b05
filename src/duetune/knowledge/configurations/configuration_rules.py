"""Rules that a configuration must keep to be started at all, whatever its memory."""

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
    """Data, not code: ``expression`` is what must hold (see ``expressions``), ``meaning`` what a
    user is told where it does not.
    """

    expression: str
    meaning: str = ""

    def __post_init__(self) -> None:
        parse_expression(self.expression)

    @property
    def fields(self) -> frozenset[str]:
        """Those it depends on."""
        return parse_expression(self.expression).fields

    def holds(self, configurations: Configurations) -> NDArray[np.bool_]:
        return parse_expression(self.expression).holds(configurations)

    def __str__(self) -> str:
        return self.meaning or self.expression


# That gptq-lora needs a quantised checkpoint is not among them: no public table names the
# checkpoint, the model goes by the name of what was quantised.
RULES: tuple[Constraint, ...] = (
    Constraint(
        "num_gpus >= 1 and num_nodes >= 1 and batch_size >= 1 and tokens_per_sample >= 1"
        " and grad_accum >= 1",
        "there is at least one GPU, node, sequence, token and step of accumulation",
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
        'num_gpus == 1 or sharding != "none"', "several GPUs share the work in one of the ways"
    ),
    Constraint('method == "full" or lora_rank >= 1 or method == "pt"', "adapters have a rank"),
)


def broken(configurations: Configurations, rules: Sequence[Constraint] = RULES) -> NDArray[np.int8]:
    """The index of the first rule that each configuration breaks, -1 where it breaks none."""
    first = np.full(len(configurations), -1, np.int8)
    for index in reversed(range(len(rules))):
        first[~rules[index].holds(configurations)] = index
    return first
