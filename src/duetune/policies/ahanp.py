"""AHANP: decide without a forecast, from the schedule and the present price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.policies.compiled_policy import CompiledPolicy, policy_record, short
from duetune.policies.policy_kernel import Guard, PolicyKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Ahanp(CompiledPolicy, frozen=True):
    """The policy without a forecast; its compiled rules are in ``rules.ahanp``.

    ``threshold`` (sigma): spot is cheap at or below this share of the on-demand price.
    """

    threshold: float = 0.6

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def name(self) -> str:
        """Return the name that the registry turns back into this policy."""
        return f"ahanp:{short(self.threshold)}"

    def record(self) -> NDArray[np.void]:
        """Return the kernel's record of this policy."""
        return policy_record(PolicyKind.AHANP, guard=Guard.WORTHWHILE, threshold=self.threshold)


def check_threshold(threshold: float) -> None:
    """Refuse a threshold outside 0 to 1; called when AHANP or AHAP is made."""
    if not 0 <= threshold <= 1:
        raise InvalidInput("threshold", threshold, "a share of the on-demand price, 0 to 1")
