"""Fields of other tools that mean the same here, under the same or another name.

Hyperparameters that every tool has are in ``hyperparameters``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.jobs.spec.adapter_fields import LORA_SETTINGS, QUANTISED_SETTINGS
from duetune.jobs.spec.training_fields import TRACKERS
from duetune.training.chat_templates import TEMPLATES

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_FLAGS = (
    "use_rslora",
    "use_dora",
    "use_bnb_nested_quant",
    "assistant_only_loss",
    "completion_only_loss",
    "packing",
    "use_liger_kernel",
    "push_to_hub",
    "hub_private_repo",
    "load_best_model_at_end",
)
_WHOLE = ("data_seed", "early_stopping_patience")
_TEXTS = (
    "bnb_4bit_quant_type",
    "dataset_text_field",
    "chat_template_path",
    "eos_token",
    "pad_token",
    "model_revision",
    "attn_implementation",
    "hub_model_id",
    "run_name",
    "project",
)
_EVALUATIONS = ("no", "steps", "epoch")


def carried(source: ForeignFile, names: dict[str, str], method: str) -> dict[str, object]:
    """Take the fields of a file that can be kept; ``names`` maps our names to the tool's."""

    def name(field: str) -> str:
        return names.get(field, field)

    found: dict[str, object] = {}
    for field in _FLAGS:
        found[field] = source.flag(name(field))
    for field in _WHOLE:
        found[field] = source.whole(name(field))
    for field in _TEXTS:
        found[field] = source.text(name(field))
    saved = source.take(name("lora_modules_to_save"))
    found["lora_modules_to_save"] = saved.split(",") if isinstance(saved, str) else saved
    found |= _evaluation(source) | _trackers(source)
    _drop(source, found, "load_best_model_at_end", "eval_strategy", names)
    _drop(source, found, "early_stopping_patience", "eval_strategy", names)
    _drop(source, found, "push_to_hub", "hub_model_id", names)
    left_out = {"lora": QUANTISED_SETTINGS, "full": (*LORA_SETTINGS, *QUANTISED_SETTINGS)}
    for field in left_out.get(method, ()):
        if found.pop(field, None):
            source.note(name(field), f"is not imported: it means nothing with method {method}")
    return {field: value for field, value in found.items() if value not in (None, [])}


def template(source: ForeignFile, name: str) -> dict[str, object]:
    """Take the name of a chat template; one that is unknown here becomes a note."""
    chosen = source.text(name)
    if chosen in TEMPLATES:
        return {"chat_template": chosen}
    if chosen is not None:
        source.note(name, f"{chosen} is not imported; the model's own chat template is used")
    return {}


def _evaluation(source: ForeignFile) -> dict[str, object]:
    """Take when evaluation happens; steps as a share of all become a note."""
    strategy = source.text("eval_strategy") or source.text("evaluation_strategy")
    steps, metric = source.number("eval_steps"), source.text("metric_for_best_model")
    if strategy not in {None, *_EVALUATIONS}:
        source.note("eval_strategy", f"{strategy} is not imported")
        strategy = None
    if metric not in {None, "loss", "eval_loss"}:
        source.note("metric_for_best_model", f"{metric} is not imported; it is eval_loss here")
    if steps is not None and not (strategy == "steps" and steps >= 1):
        source.note("eval_steps", f"{steps:g} is not imported; it needs eval_strategy: steps")
        steps = None
    kept = None if strategy == "no" else strategy
    return {"eval_strategy": kept, "eval_steps": None if steps is None else round(steps)}


def _trackers(source: ForeignFile) -> dict[str, object]:
    """Take the experiment trackers; those that are unknown here become a note."""
    value = source.take("report_to")
    asked = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if asked == ["all"]:
        return {"report_to": "all"}
    for other in asked:
        if other not in {*TRACKERS, "none"}:
            source.note("report_to", f"{other} is not imported: one of {', '.join(TRACKERS)}")
    return {"report_to": [each for each in asked if each in TRACKERS]}


def _drop(
    source: ForeignFile,
    found: dict[str, object],
    field: str,
    needs: str,
    names: dict[str, str],
) -> None:
    """Drop a field whose other half is missing, with a note."""
    if found.get(field) and not found.get(needs):
        source.note(names.get(field, field), f"is not imported: it needs {needs} here")
        del found[field]
