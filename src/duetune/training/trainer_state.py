"""The state of a transformers Trainer as arrays and JSON, so that members can copy and save it.

It holds the trainable parameters, the optimiser, the learning-rate schedule, the loss scale, the
Trainer's own state (step, epoch, logs, best metric) and, if asked for, the best parameters so far.
``elastic_trainer`` runs the Trainer; ``transfer`` and ``saver`` copy and save the state.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import TYPE_CHECKING

import msgspec
import torch
from transformers.trainer_callback import ExportableState

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Trainer

    from duetune.training.checkpoint import Json

_PARAMETER = "parameter."
_BEST = "best."
_OPTIMIZER = "optimizer."


class _OptimizerDocument(msgspec.Struct, frozen=True):
    """What an optimiser's ``state_dict`` has besides tensors."""

    rest: dict[str, dict[str, object]]
    groups: list[dict[str, object]]


class _Document(msgspec.Struct, frozen=True):
    """The state besides its arrays.

    - ``trainer``: the content of the Trainer's own ``trainer_state.json``.
    - ``logged``: the loss since the last log, the loss before it, and the step of the last log.
    - ``tokens``: TRL's count of tokens.
    """

    step: int
    trainer: dict[str, object]
    logged: tuple[float, float, int]
    optimizer: _OptimizerDocument | None = None
    scheduler: dict[str, object] | None = None
    scaler: dict[str, object] | None = None
    tokens: int = 0


class SharedTrainerState:
    """One member's copy of the state that all members share.

    - ``folder``: for the file from which the Trainer reads the step at which it begins.
    - ``lock``: held while the state changes or is read.
    - ``step``: the number of steps done.
    - ``loads``: how often the state was replaced.
    - ``best``: the parameters with the best metric so far, on the CPU; empty if not wanted.
    """

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self._trainer = trainer
        self._folder = folder
        self.lock = threading.Lock()
        self.step = 0
        self.loads = 0
        self.best: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, torch.Tensor] = {}
        self._document: _Document | None = None
        self._trained: tuple[str, ...] = ()
        self.parameters()

    @property
    def resume_from(self) -> str | None:
        """Return the folder with which ``train`` begins at the present step; None at step 0."""
        return str(self._folder) if self.step else None

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trainable parameters, by name."""
        model = self._trainer.model
        named = {} if model is None else dict(model.named_parameters())
        if not self._trained:
            # Once: adapters are frozen for moments, while a reference model is computed.
            self._trained = tuple(name for name, each in named.items() if each.requires_grad)
        return {name: named[name] for name in self._trained}

    def keep_best(self) -> None:
        """Keep a copy of the present parameters. Called after the best evaluation so far."""
        self.best = {
            name: parameter.detach().to("cpu", copy=True)
            for name, parameter in self.parameters().items()
        }

    def use_best(self) -> None:
        """Replace the parameters by the best ones, if there are any. Called at the end."""
        if self.best:
            self._set_parameters(self.best)

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the state, by name; not copies."""
        found = {_PARAMETER + name: each.data for name, each in self.parameters().items()}
        found |= {_BEST + name: tensor for name, tensor in self.best.items()}
        if self._trainer.optimizer is not None:
            for number, values in self._trainer.optimizer.state_dict()["state"].items():
                for key, value in values.items():
                    if isinstance(value, torch.Tensor):
                        found[f"{_OPTIMIZER}{number}.{key}"] = value
        return found

    def document(self) -> dict[str, Json]:
        """Return the rest of the state as JSON."""
        trainer, optimizer, scheduler = self._trainer, None, None
        if trainer.optimizer is not None and trainer.lr_scheduler is not None:
            state = trainer.optimizer.state_dict()
            rest = {
                str(number): {
                    key: value
                    for key, value in values.items()
                    if not isinstance(value, torch.Tensor)
                }
                for number, values in state["state"].items()
            }
            optimizer = _OptimizerDocument(rest=rest, groups=state["param_groups"])
            scheduler = trainer.lr_scheduler.state_dict()
        scaler = getattr(trainer.accelerator, "scaler", None)
        document = _Document(
            step=self.step,
            trainer=_trainer_state(trainer),
            logged=(
                float(getattr(trainer, "_tr_loss", 0.0)),
                float(getattr(trainer, "_total_loss_scalar", 0.0)),
                int(getattr(trainer, "_globalstep_last_logged", 0)),
            ),
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=None if scaler is None else scaler.state_dict(),
            tokens=int(getattr(trainer, "_total_train_tokens", 0)),
        )
        try:
            found: dict[str, Json] = msgspec.to_builtins(document)
        except TypeError as error:
            allowed = f"an optimiser and a schedule whose state is tensors and numbers ({error})"
            raise InvalidInput("optim", str(trainer.args.optim), allowed) from error
        return found

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace the state by that of a checkpoint or another member.

        The Trainer has an optimiser only after it has begun, so that part may have to wait.
        """
        try:
            known = msgspec.convert(document, _Document)
        except msgspec.ValidationError as error:
            allowed = f"the state of a transformers Trainer ({error})"
            raise InvalidInput("state", "another one", allowed) from error
        given = _named(arrays, _PARAMETER)
        if _shapes(given) != _shapes(self.parameters()):
            allowed = "the trainable parameters of this script; these belong to another one"
            raise InvalidInput("state", f"{len(given)} parameters", allowed)
        self._set_parameters(given)
        self.best = _named(arrays, _BEST)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "trainer_state.json").write_text(json.dumps(known.trainer), "utf-8")
        self._arrays, self._document = arrays, known
        if self._trainer.lr_scheduler is not None:
            self.load_optimizer()
        self.step = known.step
        self.loads += 1

    def load_optimizer(self) -> None:
        """Load what waits for the optimiser. Called when the Trainer has made or kept one."""
        arrays, self._arrays, known = self._arrays, {}, self._document
        trainer = self._trainer
        optimizer, scheduler = trainer.optimizer, trainer.lr_scheduler
        if not arrays or known is None or optimizer is None or scheduler is None:
            return
        if known.optimizer is None or known.scheduler is None:
            return
        values = {int(number): dict(rest) for number, rest in known.optimizer.rest.items()}
        for name, array in _named(arrays, _OPTIMIZER).items():
            number, key = name.split(".", 1)
            values.setdefault(int(number), {})[key] = array
        optimizer.load_state_dict({"state": values, "param_groups": known.optimizer.groups})
        scheduler.load_state_dict(known.scheduler)
        if known.scaler and trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(known.scaler)

    def load_logged(self) -> None:
        """Load the losses since the last log. Called when the Trainer has set them to zero."""
        if self._document is not None:
            trainer, logged = self._trainer, self._document.logged
            trainer._tr_loss += logged[0] - trainer._tr_loss  # noqa: SLF001 - it has no other door
            trainer._total_loss_scalar = logged[1]  # noqa: SLF001
            trainer._globalstep_last_logged = logged[2]  # noqa: SLF001
            if hasattr(trainer, "_total_train_tokens"):
                trainer._total_train_tokens = self._document.tokens  # noqa: SLF001
            self._document = None

    def _set_parameters(self, values: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters().items():
                parameter.copy_(values[name])


def _trainer_state(trainer: Trainer) -> dict[str, object]:
    """Return the content of ``trainer_state.json`` with the present state of the callbacks."""
    found = dataclasses.asdict(trainer.state)
    callbacks: dict[str, object] = {}
    for each in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(each, ExportableState):
            name = type(each).__name__
            before = callbacks.get(name)
            if before is None:
                callbacks[name] = each.state()
            else:
                several = before if isinstance(before, list) else [before]
                callbacks[name] = [*several, each.state()]
    return found | {"stateful_callbacks": callbacks}


def _named(arrays: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _shapes(tensors: dict[str, torch.Tensor] | dict[str, torch.nn.Parameter]) -> dict[str, object]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
