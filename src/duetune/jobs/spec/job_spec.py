"""The job spec: every field a user may give, checked in one place.

Its sections are in ``sections`` and ``training_fields``, parsers of single values in the other
neighbouring modules. Reading files is in ``load``.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    SecretStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from duetune.core.job import NAME, NAME_WORDS
from duetune.errors import InvalidInput
from duetune.jobs.spec import variables as environment_words
from duetune.jobs.spec.adapter_fields import check_method
from duetune.jobs.spec.method_choice import MethodChoice, parse_method, quantised
from duetune.jobs.spec.problems import InvalidSpec, Meaning, problems_of, refusal
from duetune.jobs.spec.sections import AUTO, CheckpointSpec, Resources
from duetune.jobs.spec.training_fields import Training
from duetune.jobs.spec.values import (
    DATASET,
    DEADLINE,
    DURATION,
    MODEL,
    PATH,
    DatasetPlace,
    Deadline,
    Dollars,
    Duration,
    ModelPlace,
    PathText,
    PositiveDollars,
    resolved_path,
    resolved_place,
)
from duetune.jobs.spec.variables import Envs, Secrets, Tags
from duetune.jobs.spec.yaml_document import written_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_SCRIPT = 100_000
SCRIPT = f"shell commands, at most {LONGEST_SCRIPT} characters"
PROJECT = f"empty, or {NAME_WORDS}"
_NAME = f"^{NAME}$"
_PROJECT = f"^(?:{NAME})?$"


def _script(value: object) -> str:
    if (
        not isinstance(value, str)
        or not value.strip()
        or "\0" in value
        or len(value) > LONGEST_SCRIPT
    ):
        raise refusal(SCRIPT)
    return value


Script = Annotated[str, PlainValidator(_script), WithJsonSchema({"type": "string", "minLength": 1})]


def _default_name(fields: dict[str, object]) -> str:
    """Return a name made from model and dataset, such as ``qwen3-0.6b-capybara``."""
    words = []
    for field in ("model", "dataset"):
        place = fields.get(field)
        if isinstance(place, str):
            last = re.sub(r"\.[A-Za-z]+$", "", Path(place).name)
            words.append(re.sub(r"[^a-z0-9.]+", "-", last.lower()).strip("-."))
    name = "-".join(word for word in words if word)[:63].strip("-.")
    return name or "job"


class JobSpec(BaseModel):
    """A job as the user asks for it.

    ``model``, ``dataset`` and ``deadline`` are required. With the user's own command (``run``) only
    ``deadline`` is. Invalid fields raise one ``InvalidSpec`` that names them all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: Annotated[ModelPlace | None, Meaning("The model to fine-tune.", MODEL)] = None
    dataset: Annotated[DatasetPlace | None, Meaning("The dataset to train on.", DATASET)] = None
    deadline: Annotated[
        Deadline, Meaning("When the job must be done; a duration counts from submission.", DEADLINE)
    ]
    hard_deadline: Annotated[
        bool,
        Meaning(
            "Stop the job at its deadline, finished or not. Otherwise a job without `value` goes "
            "on after it at the least cost, and a job with `value` until 1.5 times the deadline, "
            "when the value has fallen to zero.",
            "true or false",
        ),
    ] = False
    name: Annotated[
        str,
        Meaning("The name of the job; by default made from model and dataset.", NAME_WORDS),
    ] = Field(pattern=_NAME, default_factory=_default_name)
    max_duration: Annotated[
        Duration | None, Meaning("The job is stopped after this time, finished or not.", DURATION)
    ] = None
    budget: Annotated[
        PositiveDollars | None,
        Meaning(
            "The most that the job may cost, in dollars.", "dollars above zero, such as 20 or $20"
        ),
    ] = None
    value: Annotated[
        Dollars | None,
        Meaning(
            "What finishing by the deadline is worth, in dollars; by default derived from the "
            "on-demand price.",
            "dollars, zero or more, such as 20 or $20",
        ),
    ] = None
    max_price: Annotated[
        PositiveDollars | None,
        Meaning(
            "The most to pay for one GPU for one hour.", "dollars above zero, such as 2.50 or $2.50"
        ),
    ] = None
    method: Annotated[
        Annotated[
            MethodChoice,
            BeforeValidator(parse_method),
            WithJsonSchema({"enum": [str(each) for each in MethodChoice]}),
        ],
        Meaning(
            "Train all weights (`full`), low-rank adapters (`lora`), or adapters beside weights in "
            "4 bits (`qlora`).",
            f"one of {', '.join(MethodChoice)}",
        ),
    ] = MethodChoice.AUTO
    resources: Annotated[
        Resources,
        Meaning("The GPUs to run on.", "a mapping with accelerators and spot"),
    ] = Field(default_factory=Resources)
    training: Annotated[
        Training,
        Meaning("How to train.", "a mapping of training fields, named as in TrainingArguments"),
    ] = Field(default_factory=Training)
    checkpoint: Annotated[
        CheckpointSpec,
        Meaning("How checkpoints are saved.", "a mapping with dir, every and keep"),
    ] = Field(default_factory=CheckpointSpec)
    workdir: Annotated[
        PathText | None,
        Meaning("The folder in which `setup` and `run` start; by default that of the spec.", PATH),
    ] = None
    setup: Annotated[
        Script | None, Meaning("Shell commands that run on every new node before `run`.", SCRIPT)
    ] = None
    run: Annotated[
        Script | None,
        Meaning("Your own command, instead of the built-in trainer.", SCRIPT),
    ] = None
    envs: Annotated[
        Envs,
        Meaning("Environment variables of the job.", environment_words.ENVS),
    ] = Field(default_factory=dict)
    secrets: Annotated[
        Secrets,
        Meaning(
            "Environment variables whose values are never stored or shown.",
            environment_words.SECRETS,
        ),
    ] = ()
    tags: Annotated[
        Tags,
        Meaning("Labels for finding and grouping jobs.", environment_words.TAGS),
    ] = Field(default_factory=dict)
    priority: Annotated[
        int,
        Field(ge=-1000, le=1000),
        Meaning(
            "Jobs with a higher priority go first when jobs compete for GPUs.",
            "a whole number from -1000 to 1000",
        ),
    ] = 0
    project: Annotated[
        str,
        Field(pattern=_PROJECT),
        Meaning("The project whose GPU quota the job counts against, if there is one.", PROJECT),
    ] = ""
    fleet: Annotated[
        str,
        Field(max_length=200, pattern=r"^\S*$"),
        Meaning(
            "The fleet to run on; by default the one that `[site]` in `config.toml` names. A job "
            "stays on its fleet.",
            "a name that 'duetune fleet list' shows",
        ),
    ] = ""
    policy: Annotated[
        str,
        Field(min_length=1, max_length=200, pattern=r"^\S+$"),
        Meaning(
            "The policy that decides how many GPUs to hold; `auto` learns it from past jobs.",
            "auto, or a policy name that 'duetune policies' lists",
        ),
    ] = AUTO

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.run is None:
            for field, allowed in (("model", MODEL), ("dataset", DATASET)):
                if getattr(self, field) is None:
                    raise refusal(
                        f"{allowed}; it can be left out only with your own command (run)", field
                    )
            for field in ("setup", "workdir"):
                if getattr(self, field) is not None:
                    allowed = f"no value: {field} is used only with your own command (run)"
                    raise refusal(allowed, field)
        else:
            for field in self.training.given:
                if field != "max_steps":
                    raise refusal(
                        "no value: your own command (run) sets it; only max_steps can be given",
                        f"training.{field}",
                    )
            if self.method is not MethodChoice.AUTO:
                raise refusal("no value: your own command (run) decides the method", "method")
        check_method(self.method, self.training)
        both = sorted(set(self.envs) & set(self.secrets))
        if both:
            raise refusal(f"names that are not in envs; {both[0]} is in both", "secrets")
        return self

    # Last of the validators, so that it sees the problems of all others.
    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(
            data, dict
        ):  # A field without a value, such as "training:", counts as left out.
            data = {field: value for field, value in data.items() if value is not None}
            data = quantised(data)
        try:
            return handler(data)
        except ValidationError as error:
            raise InvalidSpec(problems_of(error, cls)) from None

    @property
    def gpus(self) -> tuple[str | None, int, int | None]:
        """The GPU name (None: any), and the least and most of them (None: as many as help)."""
        chosen = self.resources.accelerators
        return chosen.name, chosen.least, chosen.most

    @property
    def has_members(self) -> bool:
        """Whether the user's command is started once per GPU, as members of one elastic group. A
        range of GPUs asks for that.
        """
        _, least, most = self.gpus
        return self.run is not None and most != least and (most or least) > 1

    @property
    def max_duration_s(self) -> float | None:
        """The maximum duration in seconds; None if there is none."""
        return None if self.max_duration is None else self.max_duration.total_seconds()

    def deadline_at(self, now: float) -> float:
        """Return the deadline in seconds since 1970, for a job that is submitted at ``now``.

        Refuses a moment that has already passed.
        """
        if isinstance(self.deadline, timedelta):
            return now + self.deadline.total_seconds()
        moment = self.deadline.timestamp()
        if moment <= now:
            present = datetime.fromtimestamp(now, tz=self.deadline.tzinfo).isoformat(" ", "minutes")
            raise InvalidInput(
                "deadline",
                self.deadline.isoformat(),
                f"a moment in the future; it is now {present}",
            )
        return moment

    def deadline_s(self, now: float) -> float:
        """Return the seconds from submission at ``now`` to the deadline; above zero."""
        return self.deadline_at(now) - now

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``envs`` with values. A null is replaced by the value in ``environ``, the
        environment of whoever submits.
        """
        values = {}
        for name, value in self.envs.items():
            if value is None and name not in environ:
                allowed = f"a value, or ${name} set in the environment where you submit"
                raise InvalidInput(f"envs.{name}", None, allowed)
            values[name] = environ[name] if value is None else value
        return values

    def secret_values(self, environ: Mapping[str, str]) -> dict[str, SecretStr]:
        """Return the secret values for the launch; they print as stars."""
        for name in self.secrets:
            if name not in environ:
                raise InvalidInput(
                    "secrets", name, f"names of variables that are set; ${name} is not set"
                )
        return {name: SecretStr(environ[name]) for name in self.secrets}

    def resolved(self, folder: Path | str) -> Self:
        """Return the spec with absolute paths; relative ones start at ``folder``."""
        base = Path(folder).absolute()
        fields = self.document()
        for field in ("model", "dataset"):
            if isinstance(place := fields.get(field), str):
                fields[field] = resolved_place(place, base)
        training = dict(self.training.given)
        if self.training.eval_dataset is not None:
            training["eval_dataset"] = resolved_place(self.training.eval_dataset, base)
        if self.training.chat_template_path is not None:
            path = resolved_path(self.training.chat_template_path, base)
            training["chat_template_path"] = path
        if training:
            fields["training"] = training
        if self.checkpoint.dir is not None:
            place = resolved_path(self.checkpoint.dir, base)
            fields["checkpoint"] = self.checkpoint.model_copy(update={"dir": place})
        if self.run is not None:
            fields["workdir"] = resolved_path(self.workdir or ".", base)
        return type(self).model_validate(fields | {"name": self.name})

    def amended(self, **fields: object) -> Self:
        """Return the spec with other values for some fields, validated again."""
        return type(self).model_validate(self.document() | fields)

    def document(self) -> dict[str, object]:
        """Return the fields that differ from their defaults, as JSON values. Loading them gives an
        equal spec.
        """
        fields: dict[str, object] = self.model_dump(mode="json", exclude_defaults=True)
        if fields.get("name") == _default_name(fields):
            del fields["name"]
        return fields

    def to_yaml(self) -> str:
        """Return the spec as a YAML file that ``load_spec`` reads back to an equal spec."""
        return written_yaml(self.document())


def spec_json_schema() -> dict[str, object]:
    """Return the JSON schema of a spec, for editors and other programs."""
    schema: dict[str, object] = JobSpec.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "duetune job spec",
        **{key: value for key, value in schema.items() if key != "title"},
        "anyOf": [{"required": ["model", "dataset"]}, {"required": ["run"]}],
    }
