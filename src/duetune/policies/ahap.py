"""AHAP: committed horizon control with forecasts.

The parameters and the name are here; the compiled rules are in ``ahap_kernel`` and ``window_plan``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.policies.ahanp import check_threshold
from duetune.policies.compiled_policy import CompiledPolicy, policy_record, short
from duetune.policies.policy_kernel import Guard, PolicyKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST_WINDOW = 512
LARGEST_PATIENCE = 100
DEFAULT_OUTLOOK = 0.5
DEFAULT_PATIENCE = 0.3


class Ahap(CompiledPolicy, frozen=True):
    """Plan ``window`` (omega) slots ahead and hold the mean of the last ``commitment`` (v) plans.

    - ``threshold`` (sigma): if the job is ahead of schedule and spot costs at most this share of
      on-demand, it uses all spot.
    - ``refuse_dear_spot``: if the job is ahead, it does not use spot above the threshold.
    - ``virtual``: plans follow trajectories of their own, as in the original committed horizon
      control, instead of starting from the real state.

    Three parameters are ours. With 0, 0 and false, AHAP is as in the paper.

    - ``outlook``: the share of the typically available spot that plans count on beyond the window;
      0 counts on on-demand alone.
    - ``patience``: the surcharge on on-demand in the present slot, as a share of its price. Buying
      on-demand now gives up the chance that spot does the work later.
    - ``thrifty``: hold no more GPUs than finish the work in the present slot, if fewer finish it as
      soon.
    """

    window: int = 5
    commitment: int = 1
    threshold: float = 0.5
    outlook: float = DEFAULT_OUTLOOK
    patience: float = DEFAULT_PATIENCE
    thrifty: bool = True
    refuse_dear_spot: bool = False
    virtual: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.window <= LARGEST_WINDOW:
            raise InvalidInput("window", self.window, f"0 to {LARGEST_WINDOW} slots")
        if not 1 <= self.commitment <= max(1, self.window):
            raise InvalidInput(
                "commitment", self.commitment, f"1 to {max(1, self.window)}, the window"
            )
        if not 0 <= self.outlook <= 1:
            raise InvalidInput("outlook", self.outlook, "a share, 0 to 1")
        if not 0 <= self.patience <= LARGEST_PATIENCE:
            raise InvalidInput("patience", self.patience, f"0 to {LARGEST_PATIENCE}")
        check_threshold(self.threshold)

    @property
    def name(self) -> str:
        """Return the name that the registry turns back into this policy."""
        numbers = (self.window, self.commitment, self.threshold, self.outlook, self.patience)
        options = (
            (not self.thrifty, "lavish"),
            (self.refuse_dear_spot, "refuse"),
            (self.virtual, "virtual"),
        )
        parts = (*map(short, numbers), *(word for given, word in options if given))
        return ":".join(("ahap", *parts))

    @property
    def lookahead(self) -> int:
        """Return the window: the number of slots of forecast that it uses."""
        return self.window

    def record(self) -> NDArray[np.void]:
        """Return the kernel's record of this policy."""
        return policy_record(
            PolicyKind.AHAP,
            guard=Guard.WORTHWHILE,
            window=self.window,
            commitment=self.commitment,
            threshold=self.threshold,
            refuse_dear_spot=self.refuse_dear_spot,
            virtual=self.virtual,
            outlook=self.outlook,
            patience=self.patience,
            thrifty=self.thrifty,
        )
