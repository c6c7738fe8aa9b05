"""Fields of the section ``training`` about the model's files, the data and where results go."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from duetune.jobs.spec.problems import Meaning, refusal
from duetune.jobs.spec.values import HUB_NAME, PATH, PathText
from duetune.training.chat_templates import TEMPLATES

_YES_NO = "true or false"
_TEMPLATE = f"one of {', '.join(TEMPLATES)}, or the text of a template"
_VOCABULARY = "a token of the model's vocabulary"
_REVISION = "a branch, tag or commit"

Name = Annotated[str | None, Field(min_length=1, max_length=200)]


class DataFields(BaseModel):
    """What rows become, which of their tokens count, and where the result is published."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dataset_text_field: Annotated[
        Name, Meaning("The column of the texts; `text` if left out.", "the name of a column")
    ] = None
    chat_template: Annotated[
        str | None,
        Field(min_length=1, max_length=100_000),
        Meaning("The chat template, instead of the model's own; it is saved.", _TEMPLATE),
    ] = None
    chat_template_path: Annotated[
        PathText | None,
        Meaning("A file with the chat template, or the folder of a model that has one.", PATH),
    ] = None
    assistant_only_loss: Annotated[
        bool | None,
        Meaning("In `messages`, only those of the assistant count; true if left out.", _YES_NO),
    ] = None
    completion_only_loss: Annotated[
        bool | None,
        Meaning("Of `prompt` and `completion` only the latter counts; true if left out.", _YES_NO),
    ] = None
    packing: Annotated[
        bool | None,
        Meaning(
            "Accepted and without effect: rows are always laid end to end without padding, and "
            "never see each other, so results are those of single rows.",
            _YES_NO,
        ),
    ] = None
    eos_token: Annotated[Name, Meaning("The token that ends a text.", _VOCABULARY)] = None
    pad_token: Annotated[
        Name, Meaning("The token for padding that is saved with the tokenizer.", _VOCABULARY)
    ] = None
    model_revision: Annotated[Name, Meaning("The version of a model on the hub.", _REVISION)] = None
    attn_implementation: Annotated[
        Name,
        Meaning(
            "The attention of the model; without it, the fastest that works.",
            "a name that transformers knows, such as sdpa or eager",
        ),
    ] = None
    push_to_hub: Annotated[
        bool | None,
        Meaning("Upload the result to the hub at the end; needs HF_TOKEN in `secrets`.", _YES_NO),
    ] = None
    hub_model_id: Annotated[
        Annotated[str, Field(pattern=HUB_NAME)] | None,
        Meaning("The name on the hub to which the result is uploaded.", "a name such as me/model"),
    ] = None
    hub_private_repo: Annotated[
        bool | None, Meaning("Make a new repository on the hub private.", _YES_NO)
    ] = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.chat_template is not None and self.chat_template_path is not None:
            allowed = "no value, because chat_template is given: only one can be"
            raise refusal(allowed, "chat_template_path")
        if self.chat_template is not None and not (
            self.chat_template in TEMPLATES or "{" in self.chat_template
        ):
            raise refusal(f"{_TEMPLATE}; for a file write chat_template_path", "chat_template")
        if self.push_to_hub and self.hub_model_id is None:
            raise refusal("a name on the hub, because push_to_hub is true", "hub_model_id")
        return self
