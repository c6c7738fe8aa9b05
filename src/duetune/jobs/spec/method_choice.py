"""The field ``method`` of a spec, and other ways to ask for quantised weights."""

from __future__ import annotations

from enum import StrEnum

from duetune.jobs.spec.adapter_fields import QUANTISED_SETTINGS
from duetune.jobs.spec.problems import refusal
from duetune.jobs.spec.training_fields import Training


class MethodChoice(StrEnum):
    """How the weights are trained, as a spec says it; AUTO leaves it to the configurator."""

    AUTO = "auto"
    LORA = "lora"
    QLORA = "qlora"
    FULL = "full"


_WRITTEN = {
    "dora": "write method: lora with training.use_dora: true",
    "rslora": "write method: lora with training.use_rslora: true",
    "freeze": "freeze is not supported",
}


def parse_method(value: object) -> MethodChoice:
    """Return the method of a spec; other tools' words are refused with a hint."""
    if isinstance(value, str) and value in set(MethodChoice):
        return MethodChoice(value)
    if isinstance(value, str) and value in _WRITTEN:
        raise refusal(f"one of {', '.join(MethodChoice)}; {_WRITTEN[value]}")
    raise refusal(f"one of {', '.join(MethodChoice)}")


def quantised(data: dict[str, object]) -> dict[str, object]:
    """Return the fields with ``method: qlora`` where the training section asks for 4 bits."""
    training, method = data.get("training"), data.get("method", MethodChoice.AUTO)
    given = training.given if isinstance(training, Training) else training
    if not isinstance(given, dict):
        return data
    asked, open_ = given.get("load_in_4bit"), method == MethodChoice.AUTO
    detailed = asked is not False and any(
        given.get(field) is not None for field in QUANTISED_SETTINGS
    )
    if (asked is True and method == MethodChoice.LORA) or (detailed and open_):
        return {**data, "method": MethodChoice.QLORA.value}
    return data
