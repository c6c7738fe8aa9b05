"""AHAP: decide with forecasts, by committed horizon control."""

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
    """Plan ``window`` (omega) slots ahead, hold the mean of the last ``commitment`` (v) plans.

    ``threshold`` (sigma): when ahead of the pace and spot costs at most this share of on-demand,
    all of it is banked. ``refuse_dear_spot``: when ahead, spot above the threshold is not used.
    ``virtual``: plans follow trajectories of their own, as in committed horizon control proper,
    instead of starting from the real state.

    Three parameters are ours; at 0, 0 and false, AHAP is as specified. ``outlook``: the share of
    the typically available spot that is counted on beyond the window; 0 counts on on-demand alone.
    ``patience``: by how much dearer than its price on-demand seems in the present slot, since
    buying it now forgoes the chance that spot does the work later. ``thrifty``: no more GPUs than
    finish the work in the present slot, where fewer finish it as soon.
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
                "commitment", self.commitment, f"1 to the window, which is {self.window}, or 1"
            )
        if not 0 <= self.outlook <= 1:
            raise InvalidInput("outlook", self.outlook, "a share, 0 to 1")
        if not 0 <= self.patience <= LARGEST_PATIENCE:
            raise InvalidInput("patience", self.patience, f"0 to {LARGEST_PATIENCE}")
        check_threshold(self.threshold)

    @property
    def name(self) -> str:
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
        return self.window

    def record(self) -> NDArray[np.void]:
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
