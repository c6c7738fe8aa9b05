"""The methods of a member's Trainer that differ from those of transformers and TRL.

``elastic_trainer`` puts them before the methods of the user's own Trainer class. Whatever is not
here is the Trainer's: losses, clipping, schedules, logs, evaluation.
"""

# ruff: noqa: ARG002 - the Trainer decides what its methods are given

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

import torch
from transformers import Trainer

from duetune.training.epoch_order import EpochOrder
from duetune.training.trainer_member import Jumped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.utils.data import DataLoader, Dataset, Sampler
    from transformers import TrainingArguments
    from transformers.trainer_utils import TrainOutput

    from duetune.training.trainer_member import TrainerMember

    Inputs = dict[str, torch.Tensor]


class Uncollated:
    """The rows of a microbatch before they are collated."""

    def __init__(self, collate: Callable[[list[object]], Inputs], rows: list[object]) -> None:
        self._collate = collate
        self._rows = rows

    def collated(self) -> Inputs:
        """Return the microbatch. Only the member that computes it calls this."""
        return self._collate(self._rows)


class MemberMethods(Trainer):
    """What a member's Trainer does in its own way; everything else is the Trainer's."""

    duetune_member: TrainerMember
    _batches: Sequence[Inputs | Uncollated] = ()
    _together = 1

    def _choose(self, number: int) -> None:
        """Prepare for one microbatch of the step; nothing to do unless the Trainer generates."""

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Run the Trainer's loop from the group's step; again if the group is at another one."""
        while True:
            begin = self.duetune_member.state.resume_from
            try:
                return super()._inner_training_loop(
                    batch_size, args, begin, trial, ignore_keys_for_eval
                )
            except Jumped:
                # Keep the scheduler, which has the group's state already.
                self._created_lr_scheduler = False

    def get_batch_samples(
        self, epoch_iterator: Iterator[Inputs], num_batches: int, device: torch.device
    ) -> tuple[list[Inputs], torch.Tensor | int | None]:
        """Form the group, then read the microbatches of the whole step.

        Where rows are not collated yet, the Trainer's loop is given nothing, and counts nothing.
        """
        self.duetune_member.begin()
        if not self._collates_later:
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            self._batches = batches
            return batches, items
        self._batches = list(itertools.islice(epoch_iterator, num_batches))
        return [{} for _ in self._batches], None

    @property
    def _collates_later(self) -> bool:
        """Return whether a member collates only the microbatches that it computes.

        Not where processes of a data loader collate ahead, or where the Trainer's class reads its
        batches in its own way.
        """
        own, usual = super(), Trainer
        return self.args.dataloader_num_workers == 0 and all(
            getattr(own, name).__func__ is getattr(usual, name)
            for name in ("get_batch_samples", "get_train_dataloader", "_get_dataloader")
        )

    def get_train_dataloader(self) -> DataLoader[object]:
        """Return the Trainer's data loader; rows are collated where that is needed."""
        loader = super().get_train_dataloader()
        if self._collates_later:
            found: DataLoader[object] = getattr(loader, "base_dataloader", loader)
            found.collate_fn = functools.partial(Uncollated, found.collate_fn)
        return loader

    def _track_num_input_tokens(self, inputs: Inputs) -> None:
        if inputs:
            super()._track_num_input_tokens(inputs)  # type: ignore[no-untyped-call]

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: Inputs,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Compute this member's share with the last microbatch of a step; do nothing before."""
        nothing = torch.zeros((), device=self.args.device)
        if not self.accelerator.sync_gradients:
            return nothing
        train, batches = super().training_step, self._batches
        if (scaler := self.accelerator.scaler) is not None:
            # A member without a share would leave the scaler uninitialised.
            scaler.scale(nothing)

        own: dict[int, Inputs] = {}
        items = num_items_in_batch

        def prepare(numbers: Sequence[int]) -> None:
            nonlocal items
            own.clear()
            if not self._collates_later:
                return
            for number in numbers:
                # Collators may draw random numbers: not those of the model.
                with self.duetune_member.drawing(len(batches) + number):
                    own[number] = batches[number].collated()  # type: ignore[union-attr]
            items = self._items_of_all(list(own.values()))

        def compute(number: int) -> torch.Tensor:
            self._choose(number)
            batch = own.get(number)
            if batch is None:
                return train(model, batches[number], items)  # type: ignore[arg-type]
            self.current_flos += self.floating_point_ops(batch)
            self._track_num_input_tokens(batch)
            return train(model, batch, items)

        return self.duetune_member.share(len(batches), prepare, compute, together=self._together)

    def _items_of_all(self, own: list[Inputs]) -> torch.Tensor | int | None:
        """Return the items of the whole step by which the loss is divided; None if by none."""
        device = self.args.device
        counted = self._get_num_items_in_batch(own, device)
        known, total = self.duetune_member.total(
            (0.0, 0.0) if counted is None else (1.0, float(counted))
        )
        return torch.tensor(int(total), device=device) if known else None

    def _get_train_sampler(
        self, train_dataset: Dataset[object] | None = None
    ) -> Sampler[int] | None:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sampler = super()._get_train_sampler(train_dataset)
        return None if sampler is None else EpochOrder(sampler, seed)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self.duetune_member.state.load_optimizer()

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: it was loaded with the optimiser."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Do nothing: every microbatch has its own seed."""

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        self.duetune_member.ask_save()

    def _determine_best_metric(self, metrics: dict[str, float], trial: object) -> bool:
        best: bool = super()._determine_best_metric(metrics, trial)
        if best and self.args.load_best_model_at_end:
            self.duetune_member.state.keep_best()
        return best


class GeneratingMethods(MemberMethods):
    """TRL's GRPO and RLOO: each member generates completions for its own share of the prompts.

    A block is the fewest microbatches that hold whole groups of completions, because rewards are
    compared within a group. A member generates the blocks that it computes.
    """

    num_generations: int
    num_iterations: int
    _generate_and_score_completions: Callable[[Sequence[Inputs]], Inputs]
    _number = 0
    _blocks: dict[tuple[int, int], list[Inputs]]

    @property
    def _together(self) -> int:  # type: ignore[override]
        size: int = self.args.per_device_train_batch_size
        return math.lcm(size, self.num_generations) // size

    def _choose(self, number: int) -> None:
        self._number = self.state.global_step * self.args.gradient_accumulation_steps + number
        self._step = self._number

    def _prepare_inputs(self, inputs: Inputs) -> Inputs:
        """Return the microbatch of the present number; generate its block if that is new.

        TRL gives the rows of a whole generation, which are a list, in every microbatch of it.
        """
        if self.model is None or not self.model.training:
            return super()._prepare_inputs(inputs)
        each: int = self.args.steps_per_generation  # type: ignore[attr-defined] # TRL's argument
        generation, place = self._number // (each * self.num_iterations), self._number % each
        key = (generation, place // self._together)
        blocks = getattr(self, "_blocks", {})
        if key not in blocks:
            self._blocks = {known: block for known, block in blocks.items() if known[0] == key[0]}
            with self.duetune_member.active():
                self._blocks[key] = self._generated(inputs, key[1], each)
        return self._blocks[key][place % self._together]

    def _generated(self, rows: Sequence[Inputs] | Inputs, block: int, each: int) -> list[Inputs]:
        from trl.trainer import utils  # noqa: PLC0415 - only if the script uses TRL

        size = self._together * self.args.per_device_train_batch_size
        mine = list(rows)[block * size : (block + 1) * size]
        made = self._generate_and_score_completions(mine)  # type: ignore[arg-type]
        made = utils.shuffle_sequence_dict(utils.split_pixel_values_by_grid(made))  # type: ignore[arg-type, assignment]
        parts: list[Inputs] = utils.split_tensor_dict(made, self._together)  # type: ignore[arg-type, assignment]
        for part in parts:
            if (items := part.get("num_items_in_batch")) is not None:
                # TRL divides by the tokens of all blocks. Only those of this one are known here.
                part["num_items_in_batch"] = items * (each // self._together)
        return [utils.unsplit_pixel_values_by_grid(part) for part in parts]  # type: ignore[arg-type]
