"""One member of a job whose script uses a transformers Trainer: its group, its share, its saves.

Every member's Trainer goes through the same steps and the same global batch. A member computes its
share of the microbatches; the gradients are summed over the members before the optimiser's step.
``elastic_trainer`` calls this from inside the Trainer; what is shared is in ``trainer_state``.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch

from duetune.core.progress import Phase, Progress
from duetune.training.batches import dropout_seed
from duetune.training.entry import checkpoint_store, join, restore
from duetune.training.group import GroupBroken, Left
from duetune.training.heartbeat_file import HeartbeatFile
from duetune.training.language_model import seeded
from duetune.training.publication import PublishedResult, only_publisher, publish, published
from duetune.training.saver import Saver
from duetune.training.trainer_metrics import TrainerMetrics
from duetune.training.trainer_state import SharedTrainerState
from duetune.training.training_loop import StepPace, members
from duetune.training.worker_contract import Notice, ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transformers import Trainer

    from duetune.training.membership import Arrangement
    from duetune.training.worker_contract import Contract

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_MOST_PAUSE_S = 2.0
# Gradients are summed in pieces of this many numbers, so that no second copy of all is needed.
_PIECE = 1 << 26


class Jumped(Exception):
    """The group is at another step than this member's Trainer, which must begin again there."""


class Finished(Exception):
    """There is nothing left to train."""


class TrainerMember:
    """This process as a member of the group of its job.

    - ``output``: the folder of the result.
    - ``leads``: whether this member reports progress and saves checkpoints.
    """

    def __init__(self, trainer: Trainer, contract: Contract, output: Path) -> None:
        self._trainer = trainer
        self._contract = contract
        self._output = output
        self._scratch = Path(tempfile.mkdtemp(prefix="duetune-"))
        self.state = SharedTrainerState(trainer, self._scratch)
        self._metrics = TrainerMetrics(trainer)
        self._heartbeat = HeartbeatFile(contract)
        self._notice = Notice(contract.notice_file).install()
        self._reporter = ProgressReporter(contract)
        store = checkpoint_store(contract)
        restored = restore(store, self.state)
        self._loads = self.state.loads
        self._device: torch.device = trainer.args.device
        self._group = join(
            contract, store, restored, self.state, self._device, self._notice, self._heartbeat
        )
        self._saver = Saver(
            store,
            contract.hazard_file,
            every_s=None,
            alone=False,
            saved_step=0 if restored is None else restored.step,
            touch=self._group.touch,
        )
        _log.info("joining the group at step %d", self.state.step)
        self._pace = StepPace()
        self._arrangement: Arrangement | None = None
        self._formed = False
        self._reported = self.state.step
        self._loss: float | None = None
        self._asked = False

    @property
    def leads(self) -> bool:
        """Return whether this member leads the group of the present step."""
        return self._arrangement is not None and self._arrangement.leads

    def begin(self) -> None:
        """Agree on the members of the next step. Called before the Trainer reads its batches.

        It raises ``Jumped`` if the group has given this member the state of another step,
        ``Finished`` if nothing is left to do, and ``Left`` if this member has to leave.
        """
        if self.leads and self.state.step > self._reported:
            # Now the Trainer has also logged and evaluated the last step.
            self._report()
            self._saver.save_if_due(self.state, asked=self._asked)
            self._asked = False
        if self._formed:
            # The group was formed before this member's Trainer began again.
            self._formed = False
        else:
            self._form()
        if self.state.step >= self._trainer.state.max_steps:
            raise Finished

    def share(
        self,
        count: int,
        prepare: Callable[[Sequence[int]], None],
        compute: Callable[[int], torch.Tensor],
        *,
        together: int = 1,
    ) -> torch.Tensor:
        """Compute this member's share of ``count`` microbatches and return the loss of them all.

        ``prepare`` is given the numbers of this member's microbatches; it may call ``total``.
        ``compute`` does the forward and backward pass of one microbatch and returns its loss. So
        many microbatches in a row as ``together`` says go to the same member. Afterwards the
        gradients and metrics are those of the whole batch. If a member is lost meanwhile, the work
        is shared anew.
        """
        self._metrics.begin()
        while True:
            arrangement = self._arrangement
            if arrangement is None:
                raise RuntimeError("a step has begun without a group")
            for parameter in self.state.parameters().values():
                parameter.grad = None
            loss = torch.zeros((), device=self._device)
            blocks = range(arrangement.rank, -(-count // together), arrangement.world)
            mine = [
                block * together + place
                for block in blocks
                for place in range(together)
                if block * together + place < count
            ]
            try:
                prepare(mine)
                for number in mine:
                    self.touch()
                    with self.drawing(number):
                        loss = loss + compute(number).to(loss.device)
                self._warn_of_idle(arrangement.world, -(-count // together))
                loss = self._summed(loss, arrangement.world)
                if arrangement.world > 1:
                    own = self._metrics.own().to(self._device)
                    self._metrics.take(self._group.gather(own))
            except GroupBroken as broken:
                self._metrics.undo()
                self._pace.disturb()
                _log.info("repeating step %d: %s", self.state.step + 1, broken)
                self._form()
            else:
                self._loss = float(loss)
                return loss

    def drawing(self, place: int) -> contextlib.AbstractContextManager[None]:
        """Return a context whose random numbers depend on seed, step and place alone."""
        seed = dropout_seed(int(self._trainer.args.seed), self.state.step, place)
        return seeded(seed, self._device)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of these numbers over all members of the step."""
        if self._arrangement is None or self._arrangement.world == 1:
            return list(numbers)
        own = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        return [float(number) for number in self._group.add_up(own)]

    def stepped(self) -> None:
        """Record that the optimiser has made the step."""
        self.state.step = self._trainer.state.global_step
        if (change := self._pace.stepped()) is not None:
            _log.info("step %d: %s", self.state.step, change)

    def ask_save(self) -> None:
        """Save a checkpoint after this step. Called where the Trainer would write its own."""
        self._asked = True

    def touch(self) -> None:
        """Record that this process is active; a member that has been given notice is hushed."""
        self._group.touch()
        if self._notice.given:
            self._group.hush()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Touch in a thread, for long work that does not: generating text, computing metrics."""
        done = threading.Event()

        def keep_up() -> None:
            while not done.wait(1.0):
                self._group.touch()

        threading.Thread(target=keep_up, name="active", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def leave(self) -> None:
        """Save the last step if this member leads. Called when it has to leave."""
        self._group.hush()
        _log.info("this node will be taken; leaving after step %d", self.state.step)
        self._saver.save_now(self.state)

    def finish(self, write: Callable[[Path], None]) -> None:
        """Publish the result, unless another member has done so; ``write`` fills its folder."""
        # Stay a member while publishing, so that a new member waits instead of training alone.
        self._saver.save_now(self.state)
        with only_publisher(self._output, self._wait), self._heartbeat.kept_up():
            result = published(self._output)
            if result is None:
                self.state.use_best()
                result = publish(self._output, write, self._result())
                _log.info("published %s", self._output)
        self._reporter.report(
            Progress(
                step=result.steps,
                total_steps=result.steps,
                tokens=result.tokens,
                loss=result.loss,
                eval_loss=result.eval_loss,
                checkpoint_step=self._saver.saved_step,
                phase=Phase.FINISHED,
                message=result.warning,
                output=str(self._output),
            )
        )

    def close(self) -> None:
        """Leave the group. Called at the end, whatever it is."""
        self._group.close()
        self._saver.wait()
        # What the script does afterwards touches nothing.
        self._heartbeat.end()
        self._notice.restore()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _form(self) -> None:
        failures = 0
        while True:
            if published(self._output) is not None:
                raise Finished
            if self._notice.given:
                raise Left
            try:
                arrangement = self._group.form()
                break
            except GroupBroken as broken:
                self._pace.disturb()
                failures += 1
                _log.info("forming the group again: %s", broken)
                time.sleep(min(0.01 * 2**failures, _MOST_PAUSE_S) if failures > 3 else 0.0)
        self._arrangement = arrangement
        self._pace.formed(arrangement)
        self._saver.lead(leads=arrangement.leads)
        if self.state.loads != self._loads:
            self._loads = self.state.loads
            if self.state.step:
                self._jump()
            self.state.load_logged()

    def _jump(self) -> NoReturn:
        self._formed = True
        self._reported = self.state.step
        raise Jumped

    def _summed(self, loss: torch.Tensor, world: int) -> torch.Tensor:
        """Sum the gradients over the members and return the sum of their losses."""
        if world == 1:
            return loss
        parameters = list(self.state.parameters().values())
        # A parameter that no member has used keeps no gradient, so that it does not decay.
        used = [float(parameter.grad is not None) for parameter in parameters]
        head = torch.tensor([float(loss), *used], device=self._device)
        head = self._group.add_up(head)
        trained = [each for each, count in zip(parameters, head[1:].tolist(), strict=True) if count]
        for some in _pieces(trained):
            flat = torch.cat([_flat_gradient(parameter) for parameter in some])
            self.touch()
            self._group.add_up(flat)
            sizes = [parameter.numel() for parameter in some]
            for parameter, part in zip(some, torch.split(flat, sizes), strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.dtype)
        return head[0]

    def _report(self) -> None:
        self._reported = self.state.step
        state = self._trainer.state
        self._reporter.report(
            Progress(
                step=self.state.step,
                total_steps=state.max_steps,
                world=0 if self._arrangement is None else self._arrangement.world,
                step_s=self._pace.step_s,
                tokens=self._tokens(),
                loss=self._loss,
                eval_loss=self._logged("eval_loss"),
                checkpoint_step=self._saver.saved_step,
                phase=Phase.TRAINING,
                message=self._saver.warning,
            )
        )

    def _result(self) -> PublishedResult:
        return PublishedResult(
            steps=self.state.step,
            tokens=self._tokens(),
            loss=self._loss if self._loss is not None else self._logged("loss"),
            eval_loss=self._logged("eval_loss"),
            warning=self._saver.warning,
        )

    def _tokens(self) -> int:
        counted = self._logged("num_tokens")
        return max(int(counted or 0), int(self._trainer.state.num_input_tokens_seen))

    def _logged(self, name: str) -> float | None:
        """Return the last logged value of a metric; None if it was never logged."""
        for entry in reversed(self._trainer.state.log_history):
            if name in entry:
                return float(entry[name])
        return None

    def _warn_of_idle(self, world: int, count: int) -> None:
        if world > count and self.leads and self._pace.step_s is None:
            _log.warning(
                "%d of %s have nothing to do: a step has %d microbatches; raise "
                "gradient_accumulation_steps and lower per_device_train_batch_size",
                world - count,
                members(world),
                count,
            )

    def _wait(self) -> None:
        self.touch()
        time.sleep(_POLL_S)


def _pieces(parameters: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Split parameters into lists of about ``_PIECE`` numbers each."""
    pieces: list[list[torch.nn.Parameter]] = []
    size = _PIECE
    for parameter in parameters:
        if size >= _PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(parameter)
        size += parameter.numel()
    return pieces


def _flat_gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    return parameter.grad.detach().flatten().float()
