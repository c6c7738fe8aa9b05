"""What the other processes of a member do: they obey the worker, each with its shard of the model.

A follower makes the same calls as the worker's training loop, but decides nothing, saves nothing
and reports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from duetune.training.siblings import (
    AddUp,
    Contribute,
    Copy,
    End,
    Evaluate,
    EvaluateBase,
    Join,
    Meet,
    Restore,
    Update,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from duetune.training.evaluation import Evaluation
    from duetune.training.peer_links import PeerLinks
    from duetune.training.shared_state import SharedState
    from duetune.training.siblings import Call, Siblings


class SiblingFollower:
    """One follower.

    - ``links``: to the same process of the other members; None if the job has no group.
    - ``restore``: loads a checkpoint of that name; ``evaluate_base``: takes part in measuring the
      loss before training.
    - ``touch``: called while it computes.
    """

    def __init__(
        self,
        learner: SharedState,
        siblings: Siblings,
        links: PeerLinks | None,
        evaluation: Evaluation,
        *,
        restore: Callable[[str], None],
        evaluate_base: Callable[[], object],
        touch: Callable[[], None],
    ) -> None:
        self._learner = learner
        self._siblings = siblings
        self._links = links
        self._restore = restore
        self._evaluation = evaluation
        self._evaluate_base = evaluate_base
        self._touch = touch
        self._part: torch.Tensor | None = None

    def run(self) -> None:
        """Obey the worker until it says that the work is over."""
        self._siblings.obey(self._do)

    def _do(self, call: Call) -> None:
        match call:
            case Meet():
                assert self._links is not None
                self._siblings.texts(self._links.address)
            case Join(arrangement):
                assert self._links is not None
                self._links.enter(arrangement)
            case Contribute(rank, paces):
                self._part = self._learner.contribution(rank, paces, self._touch)
            case AddUp():
                assert self._links is not None
                assert self._part is not None
                self._links.add_up(self._part)
            case Update(evaluated):
                assert self._part is not None
                self._learner.update(self._part[0], evaluated)
                self._part = None
            case Copy():
                self._learner.arrays()
            case Restore(checkpoint):
                self._restore(checkpoint)
            case Evaluate(rank, paces):
                self._learner.evaluated_share(self._evaluation, rank, paces, self._touch)
            case EvaluateBase():
                self._evaluate_base()
            case End():
                pass
            case _:
                assert_never(call)
