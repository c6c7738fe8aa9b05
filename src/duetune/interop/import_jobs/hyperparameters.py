"""What the tools for fine-tuning share: Hugging Face's arguments under more or less other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.jobs.spec.training_fields import SCHEDULES, Training

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_PLANNED = "where and on how many GPUs a job runs is planned here"
_CHECKPOINTS = "checkpoints follow the rate of preemptions; see checkpoint.every"
REASONS = {
    "output_dir": "results go to the job's own folder",
    "overwrite_output_dir": "results go to the job's own folder",
    "save_steps": _CHECKPOINTS,
    "save_strategy": _CHECKPOINTS,
    "saves_per_epoch": _CHECKPOINTS,
    "save_only_model": _CHECKPOINTS,
    "resume_from_checkpoint": "a job always goes on from its last checkpoint",
    "auto_resume_from_checkpoints": "a job always goes on from its last checkpoint",
    "deepspeed": _PLANNED,
    "fsdp": _PLANNED,
    "fsdp_config": _PLANNED,
    "ddp_timeout": _PLANNED,
    "local_rank": _PLANNED,
    "eval_strategy": "the loss on held-out data is measured before and after",
    "eval_steps": "the loss on held-out data is measured before and after",
    "evals_per_epoch": "the loss on held-out data is measured before and after",
    "trust_remote_code": "code from the hub is never run",
    "hub_token": "list HF_TOKEN under secrets",
}
_WHOLE = (
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "logging_steps",
    "max_length",
    "lora_r",
)
_NUMBERS = (
    "num_train_epochs",
    "learning_rate",
    "weight_decay",
    "max_grad_norm",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lora_alpha",
    "lora_dropout",
)


ROWS = "rows need text, prompt and completion, or messages here"


class Hyperparameters:
    """Collects ``training`` from a source; ``names`` says what the tool calls things.

    ``defaults`` are what the tool does when nothing is said and duetune would do otherwise: they
    are written out, so that the job stays the same job.
    """

    def __init__(
        self, source: ForeignFile, names: dict[str, str], defaults: dict[str, object]
    ) -> None:
        self._source = source
        self._names = names
        self._defaults = defaults
        self.values: dict[str, object] = {}

    def collect(self, *, lora: bool) -> dict[str, object]:
        source, values = self._source, self.values
        for field in _WHOLE:
            values[field] = source.whole(self._names.get(field, field))
        for field in _NUMBERS:
            values[field] = source.number(self._names.get(field, field))
        if values["max_steps"] in {-1, 0}:  # Their way to say: count epochs.
            values["max_steps"] = None
        for field, default in self._defaults.items():
            if values.get(field) is None:
                values[field] = default
        self._schedule()
        self._warmup()
        self._optimiser()
        if not lora:
            self._without_lora()
        given = {field: value for field, value in values.items() if value is not None}
        self._batch_note(given)
        # In the order of the spec, whatever the order of the other tool.
        return {field: given[field] for field in Training.model_fields if field in given}

    def precision(self) -> None:
        """bf16 and fp16, each of which may also be ``auto`` or ``full``."""
        bf16, fp16 = self._source.mode("bf16"), self._source.mode("fp16")
        if isinstance(bf16, str) and fp16:
            bf16 = False
        for name, value in (("bf16", bf16), ("fp16", fp16)):
            if isinstance(value, str):
                self._source.note(name, f"{value} is taken for true")
        self.values["bf16"] = True if bf16 else None
        self.values["fp16"] = True if fp16 else None

    def modules(self, name: str, every: frozenset[str]) -> None:
        """Which layers LoRA adapts; ``every`` are the tool's words for all linear ones."""
        value = self._source.take(name)
        if isinstance(value, str):
            words = [word.strip() for word in value.split(",") if word.strip()]
            value = "all-linear" if value.strip() in every else words
        if value is not None:
            self.values["lora_target_modules"] = value

    def held_out(self, name: str) -> None:
        """A share of the data to measure on; a number of rows cannot be carried over."""
        size = self._source.number(name) or 0.0
        if size < 1:
            self.values["eval_fraction"] = size
        else:
            self._source.note(name, f"{size:g} rows; write eval_fraction, the share of the data")

    def _schedule(self) -> None:
        name = self._names.get("lr_scheduler_type", "lr_scheduler_type")
        asked = self._source.text(name) or self._defaults.get("lr_scheduler_type")
        chosen = asked
        if chosen is not None and chosen not in SCHEDULES:
            chosen = "cosine" if str(chosen).startswith("cosine") else "linear"
            self._source.note(name, f"{asked} is not supported; {chosen} is used")
        self.values["lr_scheduler_type"] = chosen

    def _warmup(self) -> None:
        steps, ratio = self._source.number("warmup_steps"), self._source.number("warmup_ratio")
        if steps is not None and 0 < steps < 1:  # As transformers 5 has it: a share.
            steps, ratio = None, steps
        if steps:
            if ratio:
                self._source.note("warmup_ratio", f"{ratio:g}: warmup_steps goes before it")
            self.values["warmup_steps"] = round(steps)
        elif ratio:
            self.values["warmup_ratio"] = ratio

    def _optimiser(self) -> None:
        name = self._names.get("optim", "optim")
        chosen = self._source.text(name)
        if chosen is not None and chosen not in {"adamw_torch", "adamw_torch_fused", "adamw_hf"}:
            kind = "its states stay whole" if "adamw" in chosen else "AdamW is used"
            self._source.note(name, f"{chosen} is not supported; {kind}")

    def _without_lora(self) -> None:
        for field in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"):
            value = self.values.pop(field, None)
            if value is not None and value != self._defaults.get(field):
                name = self._names.get(field, field)
                self._source.note(name, f"{value}: all weights are trained, without LoRA")

    def _batch_note(self, given: dict[str, object]) -> None:
        each, times = (
            given.get("per_device_train_batch_size"),
            given.get("gradient_accumulation_steps"),
        )
        if isinstance(each, int) and isinstance(times, int):
            self._source.note(
                self._names.get("gradient_accumulation_steps", "gradient_accumulation_steps"),
                f"a step takes {each} x {times} = {each * times} examples here on any number of "
                "GPUs; there it took as many for each GPU",
            )
