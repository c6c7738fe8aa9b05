"""Fields of the section ``training`` about the method: LoRA, weights in 4 bits, precision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from duetune.jobs.spec.problems import Meaning, refusal
from duetune.training.task import TrainingPrecision

MODULES = "all-linear, a name, a regular expression, or a list of names such as [q_proj, v_proj]"
LORA_SETTINGS = (
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "lora_modules_to_save",
    "lora_bias",
    "use_rslora",
    "use_dora",
    "init_lora_weights",
)
"""The fields that have a meaning only with adapters."""

QUANTISED_SETTINGS = ("load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant")
"""The fields that have a meaning only with weights in 4 bits."""

_PRECISIONS = tuple(each.value for each in TrainingPrecision)
_PRECISION = f"one of {', '.join(_PRECISIONS)}"
_SAVED = "a list of names such as [lm_head]"
_INITS = "true, gaussian or orthogonal"
_YES_NO = "true or false"
_NAMES = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)


def parse_modules(value: object) -> str | tuple[str, ...]:
    """Return the LoRA target modules as a name or a tuple of names."""
    if isinstance(value, str) and value.strip():
        return value
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(name, str) and name.strip() for name in value)
    ):
        return tuple(value)
    raise refusal(MODULES)


def parse_saved(value: object) -> tuple[str, ...]:
    """Return the names of the layers that are trained whole."""
    found = parse_modules(value) if value else ()
    return (found,) if isinstance(found, str) else found


def parse_initial(value: object) -> bool | str:
    """Return how adapters begin; ways that change the base model are refused with the reason."""
    if value is True or (isinstance(value, str) and value in {"gaussian", "orthogonal"}):
        return value
    why = "" if value is False else "; others change the weights of the base model"
    raise refusal(f"{_INITS}{why}")


def parse_precision(value: object) -> str:
    """Return the word for how weights are stored and computed with."""
    if value in _PRECISIONS:
        return str(value)
    raise refusal(_PRECISION)


def check_method(method: str, training: AdapterFields) -> None:
    """Refuse settings of adapters that have no meaning with the method. Specs call it."""
    fields = {"full": (*LORA_SETTINGS, *QUANTISED_SETTINGS), "lora": QUANTISED_SETTINGS}
    for field in fields.get(method, ()):
        if getattr(training, field) not in {None, False}:
            other = "qlora" if field in QUANTISED_SETTINGS else "lora or qlora"
            allowed = f"no value with method: {method}; it needs {other}"
            raise refusal(allowed, f"training.{field}")


class AdapterFields(BaseModel):
    """Which weights are trained, and how they are stored."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    lora_r: Annotated[
        int | None,
        Field(ge=1, le=65_536),
        Meaning("The rank of LoRA.", "a whole number, 1 or more"),
    ] = None
    lora_alpha: Annotated[
        float | None, Field(gt=0, le=1e6), Meaning("The scale of LoRA.", "a number above 0")
    ] = None
    lora_dropout: Annotated[
        float | None,
        Field(ge=0, lt=1),
        Meaning("The dropout of LoRA.", "a number from 0 to below 1"),
    ] = None
    lora_target_modules: Annotated[
        Annotated[str | tuple[str, ...], BeforeValidator(parse_modules), _NAMES] | None,
        Meaning("Which layers LoRA adapts.", MODULES),
    ] = None
    lora_modules_to_save: Annotated[
        Annotated[tuple[str, ...], BeforeValidator(parse_saved), _NAMES] | None,
        Meaning("Layers that are trained whole and saved with the adapter.", _SAVED),
    ] = None
    lora_bias: Annotated[
        bool | None, Meaning("Give the second matrix of LoRA a bias.", _YES_NO)
    ] = None
    use_rslora: Annotated[
        bool | None, Meaning("Scale LoRA by the root of its rank (rsLoRA).", _YES_NO)
    ] = None
    use_dora: Annotated[
        bool | None, Meaning("Train magnitude and direction apart (DoRA).", _YES_NO)
    ] = None
    init_lora_weights: Annotated[
        Annotated[
            bool | str,
            PlainValidator(parse_initial),
            WithJsonSchema({"enum": [True, "gaussian", "orthogonal"]}),
        ]
        | None,
        Meaning("The first weights of LoRA, drawn from the seed.", _INITS),
    ] = None
    load_in_4bit: Annotated[
        bool | None,
        Meaning("Keep the frozen weights in 4 bits: the same as `method: qlora`.", _YES_NO),
    ] = None
    bnb_4bit_quant_type: Annotated[
        Literal["nf4", "fp4"] | None,
        Meaning("The number format of QLoRA; nf4 if left out.", "nf4 or fp4"),
    ] = None
    use_bnb_nested_quant: Annotated[
        bool | None,
        Meaning("Quantise the scales of QLoRA too; true if left out.", _YES_NO),
    ] = None
    precision: Annotated[
        Annotated[str, PlainValidator(parse_precision), WithJsonSchema({"enum": [*_PRECISIONS]})]
        | None,
        Meaning(
            "How weights are stored and computed with. The mixed ones store 32 bits and compute in "
            "16. With `method: full`, `bf16` keeps weights, gradients and optimiser state in 16 "
            "bits.",
            _PRECISION,
        ),
    ] = None
    bf16: Annotated[
        bool | None,
        Meaning("Compute in bfloat16; all weights that are trained keep 32 bits.", _YES_NO),
    ] = None
    fp16: Annotated[
        bool | None,
        Meaning("Compute in float16; all weights that are trained keep 32 bits.", _YES_NO),
    ] = None
