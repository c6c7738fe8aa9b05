"""The reference page and the JSON schema file of the job spec, made from the fields themselves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from duetune.jobs.spec.job_spec import JobSpec, spec_json_schema
from duetune.jobs.spec.problems import Meaning
from duetune.jobs.spec.training_names import OWN, UNSUPPORTED

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_INTRODUCTION = """\
# The job spec

A job spec says what `duetune` should do, as YAML or in Python. Three fields are enough:

```yaml
model: Qwen/Qwen3-0.6B
dataset: data/train.jsonl
deadline: 8h
```

```python
from duetune.jobs.spec.job_spec import JobSpec

spec = JobSpec(model="Qwen/Qwen3-0.6B", dataset="data/train.jsonl", deadline="8h")
print(spec.to_yaml())
```

With your own command instead of the built-in trainer, `deadline` and `run` are enough:

```yaml
run: python train.py --resume
deadline: 2d4h
resources: {accelerators: "H100:1..8"}
secrets: [HF_TOKEN]
```

More examples are in `examples/jobs`. The JSON Schema is in
[job-spec.schema.json](job-spec.schema.json), and `duetune schema` prints it. For an editor that
knows YAML schemas, begin the file with `# yaml-language-server: $schema=PATH`.

- Paths are relative to the folder of the file. A model or dataset that is not on disk is read as
  a name on the Hugging Face hub (`name` or `owner/name`), if it can be one.
- Words are read by the rules of YAML 1.2: `on` and `no` are text, `2e-4` is a number. Duplicate
  fields, unknown fields and values of the wrong kind are refused. The message names file, line,
  field, value and what is allowed.
- `$NAME` and `${NAME}` are not replaced. `run` and `setup` are passed to a shell as they are
  written; the variables of `envs` and `secrets` are set there.
- A secret is the name of a variable. Its value is read from the environment at launch. It is never
  written to a journal, log, export or message.
"""
_TITLES = {
    "resources": "which GPUs",
    "training": "how to train",
    "checkpoint": "how checkpoints are saved",
}
_TRAINING = """\
The names are those of Hugging Face's `TrainingArguments`, TRL and PEFT. duetune chooses what is
left out, or uses the trainer's default. Other names of these libraries are refused with a reason;
the list is below the table. Two defaults are not TRL's: in `messages` only the assistant counts,
and rows are always packed, without seeing each other.

With `run` only `max_steps` is allowed: it says how much work there is, unless the command reports
its progress. The command sets everything else itself.
"""


def reference_page() -> str:
    """Return the text of ``docs/reference/job-spec.md``; ``duetune schema`` and a test call it."""
    parts = [_INTRODUCTION, "## Fields\n", _table(JobSpec)]
    for section, title in _TITLES.items():
        model = JobSpec.model_fields[section].annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            parts.append(f"## `{section}`: {title}\n")
            parts += [_TRAINING] if section == "training" else []
            parts.append(_table(model))
            parts += _names(model) if section == "training" else []
    return "\n".join(parts)


def _names(model: type[BaseModel]) -> list[str]:
    """Return the names of other libraries that are honoured, and the refused ones by reason."""
    honoured = ", ".join(f"`{name}`" for name in sorted(model.model_fields) if name not in OWN)
    reasons: dict[str, list[str]] = {}
    for name, reason in UNSUPPORTED.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    lines = ["| names | why they are refused |", "|---|---|"]
    lines += [f"| {', '.join(sorted(names))} | {reason} |" for reason, names in reasons.items()]
    return [
        "### Names of `TrainingArguments`, `SFTConfig`, `LoraConfig` and TRL's `ModelConfig`\n",
        f"Honoured: {honoured}.\n",
        "\n".join(lines) + "\n",
    ]


def schema_text() -> str:
    """Return the text of ``docs/reference/job-spec.schema.json``."""
    return json.dumps(spec_json_schema(), indent=2) + "\n"


def _table(model: type[BaseModel]) -> str:
    lines = ["| field | default | meaning | expected |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        meaning = next(each for each in field.metadata if isinstance(each, Meaning))
        says = meaning.says.removesuffix(".")
        cells = (f"`{name}`", _default(name, field), says, meaning.allowed)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(name: str, field: FieldInfo) -> str:
    if name in {"model", "dataset"}:
        return "required without `run`"
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    if name == "accelerators":
        return "`auto`"
    if field.default_factory is not None or field.default in {None, ()}:
        return ""
    return f"`{field.default}`"
