"""Training arguments that the fine-tuning tools share, under more or less different names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.import_jobs.carried_fields import carried
from duetune.jobs.spec.training_fields import OPTIMISERS, SCHEDULES, Training

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_PLANNED = "duetune plans where and on how many GPUs a job runs"
_RESUMED = "a job always resumes from its last checkpoint"
_FOLDER = "results go to the job's own folder"
_CHECKPOINTS = "checkpoints follow the rate of preemptions; see checkpoint.every"
REASONS = {
    "output_dir": _FOLDER,
    "overwrite_output_dir": _FOLDER,
    "save_steps": _CHECKPOINTS,
    "save_strategy": _CHECKPOINTS,
    "saves_per_epoch": _CHECKPOINTS,
    "save_only_model": _CHECKPOINTS,
    "resume_from_checkpoint": _RESUMED,
    "auto_resume_from_checkpoints": _RESUMED,
    "deepspeed": _PLANNED,
    "fsdp": _PLANNED,
    "fsdp_config": _PLANNED,
    "ddp_timeout": _PLANNED,
    "local_rank": _PLANNED,
    "evals_per_epoch": "set eval_strategy and eval_steps",
    "trust_remote_code": "code from the hub is never run",
    "load_in_8bit": "write method: qlora, which keeps the base model in 4 bits",
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


ROWS = (
    "rows need the columns text, prompt and completion, messages, conversations, or instruction "
    "and output"
)


class Hyperparameters:
    """Collects the section ``training`` of a spec from a file of another tool.

    ``names`` maps our field names to the tool's. ``defaults`` are the tool's defaults where
    duetune's differ; they are written out, so that the job stays the same.
    """

    def __init__(
        self, source: ForeignFile, names: dict[str, str], defaults: dict[str, object]
    ) -> None:
        self._source = source
        self._names = names
        self._defaults = defaults
        self.values: dict[str, object] = {}

    def collect(self, method: str) -> dict[str, object]:
        """Take all fields from the file and return the section ``training``."""
        source, values = self._source, self.values
        for field, value in carried(source, self._names, method).items():
            values.setdefault(field, value)
        for field in _WHOLE:
            values[field] = source.whole(self._names.get(field, field))
        for field in _NUMBERS:
            values[field] = source.number(self._names.get(field, field))
        if values["max_steps"] in {-1, 0}:  # In these tools it means: train by epochs.
            values["max_steps"] = None
        for field, default in self._defaults.items():
            if values.get(field) is None:
                values[field] = default
        self._schedule()
        self._warmup()
        self._optimiser()
        if method == "full":
            self._without_lora()
        elif values.get("lora_target_modules") is None:
            self._source.note(
                "lora_target_modules",
                "not given: all linear layers are adapted here; there PEFT chooses by the model",
            )
        given = {field: value for field, value in values.items() if value is not None}
        self._batch_note(given)
        # In the order of the spec, whatever the order of the other tool.
        return {field: given[field] for field in Training.model_fields if field in given}

    def precision(self) -> None:
        """Take bf16 and fp16, each of which may also be ``auto`` or ``full``."""
        bf16, fp16 = self._source.mode("bf16"), self._source.mode("fp16")
        if isinstance(bf16, str) and fp16:
            bf16 = False
        for name, value in (("bf16", bf16), ("fp16", fp16)):
            if isinstance(value, str):
                self._source.note(name, f"{value} is read as true")
        # Both false is 32 bits there; left out here, the GPU would decide.
        neither = False if bf16 is False and not fp16 else None
        self.values["bf16"] = True if bf16 else neither
        self.values["fp16"] = True if fp16 else neither

    def modules(self, name: str, every: frozenset[str]) -> None:
        """Take the LoRA layers; ``every`` are the tool's words for all linear layers."""
        value = self._source.take(name)
        if isinstance(value, str):
            words = [word.strip() for word in value.split(",") if word.strip()]
            value = "all-linear" if value.strip() in every else words
        if value is not None:
            self.values["lora_target_modules"] = value

    def held_out(self, name: str) -> None:
        """Take the share of data for evaluation; a number of rows becomes a note."""
        size = self._source.number(name) or 0.0
        if size < 1:
            self.values["eval_fraction"] = size
        else:
            self._source.note(
                name, f"{size:g} rows are not imported; set eval_fraction, a share of the data"
            )

    def _schedule(self) -> None:
        """Take the learning-rate schedule; an unsupported one is replaced, with a note."""
        name = self._names.get("lr_scheduler_type", "lr_scheduler_type")
        asked = self._source.text(name) or self._defaults.get("lr_scheduler_type")
        chosen = asked
        if chosen is not None and chosen not in SCHEDULES:
            chosen = "cosine" if str(chosen).startswith("cosine") else "linear"
            self._source.note(name, f"{asked} is not supported; {chosen} is used")
        self.values["lr_scheduler_type"] = chosen
        options = self._source.mapping("lr_scheduler_kwargs")
        if options:
            self.values["lr_scheduler_kwargs"] = options

    def _warmup(self) -> None:
        """Take the warm-up; ``warmup_steps`` overrides ``warmup_ratio``."""
        steps, ratio = self._source.number("warmup_steps"), self._source.number("warmup_ratio")
        if steps is not None and 0 < steps < 1:  # A share, as transformers 5 allows.
            steps, ratio = None, steps
        if steps:
            if ratio:
                self._source.note(
                    "warmup_ratio", f"{ratio:g} is not imported: warmup_steps overrides it"
                )
            self.values["warmup_steps"] = round(steps)
        elif ratio:
            self.values["warmup_ratio"] = ratio

    def _optimiser(self) -> None:
        """Take the optimiser; an unsupported one is replaced by AdamW, with a note."""
        name = self._names.get("optim", "optim")
        chosen = self._source.text(name)
        if chosen in OPTIMISERS:
            self.values["optim"] = chosen
        elif chosen is not None and chosen != "adamw_hf":
            self._source.note(name, f"{chosen} is not supported; AdamW is used")

    def _without_lora(self) -> None:
        """Drop LoRA settings of a job that trains all weights, with notes."""
        for field in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"):
            value = self.values.pop(field, None)
            if value is not None and value != self._defaults.get(field):
                name = self._names.get(field, field)
                self._source.note(
                    name, f"{value} is not imported: all weights are trained, without LoRA"
                )

    def _batch_note(self, given: dict[str, object]) -> None:
        """Note that the batch here counts all GPUs together."""
        size = given.get("per_device_train_batch_size")
        times = given.get("gradient_accumulation_steps")
        if isinstance(size, int) and isinstance(times, int):
            self._source.note(
                self._names.get("gradient_accumulation_steps", "gradient_accumulation_steps"),
                f"a step has {size} x {times} = {size * times} examples here, on any number of "
                "GPUs; there each GPU had as many",
            )
