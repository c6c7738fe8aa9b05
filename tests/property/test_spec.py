"""The job spec: what is written is read back, and nothing but ``InvalidInput`` is ever raised."""

from __future__ import annotations

import math
import subprocess
from datetime import UTC, datetime, timedelta

import msgspec
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from duetune.errors import InvalidInput
from duetune.interop.export_jobs.script import task_document
from duetune.interop.export_jobs.writing import Target, export_job
from duetune.interop.import_jobs.foreign_file import is_secret_name
from duetune.interop.import_jobs.reading import Tool, import_job
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.load import load_text
from duetune.jobs.spec.training_fields import SCHEDULES
from duetune.jobs.spec.values import LONGEST, parse_deadline, parse_duration, written_duration
from duetune.jobs.spec.yaml_document import parse_document, written_yaml
from duetune.training.task import TrainingTask

durations = st.timedeltas(timedelta(microseconds=1), LONGEST)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
variables = st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True).filter(
    lambda name: not name.startswith("DUETUNE_")
)
printable = st.text(
    st.characters(max_codepoint=0x2FFF, exclude_categories=("C", "Z")),
    max_size=20,
)
values = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)
dollars = st.integers(1, 10**6).map(lambda cents: cents / 100)
scripts = values.filter(str.strip)


@st.composite
def accelerators(draw):
    kinds = st.sampled_from(["auto", "H100", "A100-80GB", "L4", "Odd.1"])
    least = draw(st.integers(1, 1024))
    most = draw(st.none() | st.integers(least, 1024))
    return f"{draw(kinds)}:{least}..{'' if most is None else most}"


share = st.floats(0, 0.99)
adapters = {
    "lora_r": st.integers(1, 512),
    "lora_alpha": st.floats(0.1, 1000),
    "lora_dropout": share,
    "lora_target_modules": st.just("all-linear") | st.lists(names, min_size=1, max_size=3),
}
quantised = {
    "load_in_4bit": st.just(True),
    "bnb_4bit_quant_type": st.sampled_from(["nf4", "fp4"]),
    "use_bnb_nested_quant": st.booleans(),
}
OF_METHOD = {"auto": adapters, "lora": adapters, "qlora": adapters | quantised, "full": {}}
SCHEDULE_NEEDS = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 10},
}


@st.composite
def trainings(draw, method):
    fields = {
        "num_train_epochs": st.floats(0.01, 100),
        "max_steps": st.integers(1, 10**6),
        "per_device_train_batch_size": st.integers(1, 512),
        "gradient_accumulation_steps": st.integers(1, 512),
        "learning_rate": st.floats(1e-6, 1),
        "lr_scheduler_type": st.sampled_from(SCHEDULES),
        "weight_decay": share,
        "max_grad_norm": share,
        "adam_beta1": share,
        "adam_beta2": share,
        "adam_epsilon": st.floats(1e-12, 1e-3),
        "seed": st.integers(0, 2**32 - 1),
        "gradient_checkpointing": st.booleans(),
        "logging_steps": st.integers(1, 1000),
        "max_length": st.integers(2, 10**6),
        **OF_METHOD[method],
    }
    alone = [
        {"warmup_steps": st.integers(0, 1000)},
        {"warmup_ratio": share},
        {"bf16": st.booleans()},
        {"fp16": st.booleans()},
        {"eval_fraction": share},
        {"eval_dataset": st.just("e.jsonl")},
    ]
    chosen = draw(st.fixed_dictionaries({}, optional=fields))
    if needed := SCHEDULE_NEEDS.get(chosen.get("lr_scheduler_type")):
        chosen["lr_scheduler_kwargs"] = needed
    return chosen | draw(st.fixed_dictionaries({}, optional=draw(st.sampled_from(alone))))


@st.composite
def specs(draw, *, own=None):
    envs = draw(st.dictionaries(variables, st.none() | values, max_size=3))
    optional = {
        "name": names,
        "max_duration": durations,
        "budget": dollars,
        "value": st.just(0) | dollars,
        "max_price": dollars,
        "tags": st.dictionaries(names, printable, max_size=2) | st.lists(names, unique=True),
        "priority": st.integers(-1000, 1000),
        "policy": st.sampled_from(["auto", "ahap", "on_demand"]),
        "checkpoint": st.fixed_dictionaries(
            {},
            optional={
                "every": st.just("auto") | durations,
                "keep": st.integers(1, 99),
                "dir": st.sampled_from(["ck", "/ck", "~/ck"]),
            },
        ),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "accelerators": accelerators(),
                "spot": st.sampled_from(["auto", "only", "never", True, False]),
            },
        ),
    }
    fields = draw(st.fixed_dictionaries({}, optional=optional)) | {
        "deadline": draw(durations | moments),
        "envs": envs,
        "secrets": [
            name for name in draw(st.lists(variables, unique=True, max_size=2)) if name not in envs
        ],
    }
    if draw(st.booleans()) if own is None else own:
        fields |= {"run": draw(scripts)}
        fields |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "setup": scripts,
                    "workdir": st.sampled_from([".", "src", "/work"]),
                    "training": st.fixed_dictionaries({"max_steps": st.integers(1, 10**6)}),
                },
            )
        )
    else:
        method = draw(st.sampled_from(list(OF_METHOD)))
        fields |= {
            "model": draw(st.sampled_from(["gpt2", "Qwen/Qwen3-0.6B", "./my model"])),
            "dataset": draw(st.sampled_from(["d.jsonl", "a/b", "/data/d.csv"])),
            "method": method,
            "training": draw(trainings(method)),
        }
    return JobSpec(**fields)


def attempt(call, *arguments):
    """What a call returns, or the one-line error it raises; any other error fails the test."""
    try:
        return call(*arguments)
    except InvalidInput as error:
        if "\n" in str(error):
            raise
        return error


@given(durations)
def test_durations_are_read_back(duration):
    assert parse_duration(written_duration(duration)) == duration


@given(moments)
def test_moments_are_read_back(moment):
    assert parse_deadline(moment.isoformat()) == moment


@given(specs())
def test_specs_are_read_back(spec):
    assert load_text(spec.to_yaml()) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@given(specs())
def test_resolving_is_done_once(spec):
    once = spec.resolved("/some/where")
    assert once.resolved("/else/where") == once
    assert load_text(once.to_yaml()) == once


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(values, inner, max_size=3),
    max_leaves=10,
)


def same(one, other):
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(values, trees)
def test_our_yaml_is_read_back(key, tree):
    # YAML of our own writing has no merge keys and no numbers that only a machine would write.
    assume("<<" not in repr({key: tree}))
    assume(all(len(word) < 40 for word in repr(tree).split()))
    assert same(parse_document(written_yaml({key: tree}), "x").fields, {key: tree})


@given(st.text(max_size=200))
@example("a: &a\n  <<: *a\n")
@example("? {a: b}\n: c")
def test_no_text_breaks_the_reader(text):
    attempt(load_text, text)
    attempt(import_job, text)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.data())
def test_no_value_of_a_field_breaks_the_spec(data):
    field = data.draw(st.sampled_from(list(JobSpec.model_fields)))
    value = data.draw(anything)
    if field in {"training", "resources", "checkpoint"} and data.draw(st.booleans()):
        inner = JobSpec.model_fields[field].annotation.model_fields
        value = {data.draw(st.sampled_from(list(inner))): value}
    fields = {"model": "gpt2", "dataset": "d", "deadline": "8h"} | {field: value}
    spec = attempt(JobSpec.model_validate, fields)
    if isinstance(spec, InvalidInput):
        assert spec.field.split(".")[0].split(" ")[0] in {*JobSpec.model_fields, "field"}
    else:
        assert JobSpec.model_validate(spec.document()) == spec


TOOL_FIELDS = {
    Tool.SKYPILOT: ["run", "name", "resources", "envs", "secrets", "num_nodes", "workdir", "setup"],
    Tool.AXOLOTL: [
        "base_model", "datasets", "adapter", "bf16", "fp16", "val_set_size", "lr_scheduler",
        "micro_batch_size", "lora_target_modules", "rl", "test_datasets", "gradient_checkpointing",
    ],
    Tool.LLAMAFACTORY: [
        "model_name_or_path", "dataset", "stage", "finetuning_type", "val_size", "lora_target",
        "eval_dataset", "dataset_dir", "warmup_steps", "save_total_limit",
    ],
    Tool.TRL: [
        "model_name_or_path", "dataset_name", "datasets", "env", "use_peft", "warmup_steps",
        "max_steps", "lora_target_modules", "test_split_size", "optim",
    ],
}  # fmt: skip


@given(st.data())
def test_no_file_of_another_tool_breaks_its_import(data):
    tool = data.draw(st.sampled_from(list(Tool)))
    names_of_tool = st.sampled_from([*TOOL_FIELDS[tool], "other"])
    fields = data.draw(st.dictionaries(names_of_tool, anything, max_size=4))
    fields = {"model_name_or_path": "m", "base_model": "m", "run": "x"} | fields
    text = written_yaml(fields)
    found = attempt(import_job, text, tool)
    if not isinstance(found, InvalidInput):
        assert load_text(found.to_yaml("x")) == found.spec


@given(specs(own=False))
def test_whatever_a_spec_asks_for_the_trainer_takes(spec):
    task = msgspec.convert(task_document(spec), TrainingTask)
    assert (task.model, task.dataset) == (spec.model, spec.dataset)
    written = msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(task)))
    for field, value in spec.training.given.items():
        if field == "load_in_4bit":
            assert task.method == "qlora"
        else:
            assert written[field] == value


@given(specs(own=True))
def test_a_skypilot_task_comes_back(spec):
    exported = export_job(spec, Target.SKYPILOT)
    back = import_job(exported.text, Tool.SKYPILOT, deadline=spec.document()["deadline"]).spec
    name = spec.gpus[0]
    assert (back.name, back.setup, back.run) == (spec.name, spec.setup, spec.run)
    assert back.tags == spec.tags
    assert back.deadline == spec.deadline
    assert back.workdir == (spec.workdir or ".")
    assert back.resources.spot == spec.resources.spot
    assert back.gpus[1:] == (1, 1)  # a command runs on one GPU
    assert name is None or back.gpus[0] == name
    kept = {key: value for key, value in spec.envs.items() if not is_secret_name(key)}
    assert back.envs == kept
    assert set(back.secrets) == set(spec.secrets) | (set(spec.envs) - set(kept))


@given(specs(), st.sampled_from(list(Target)))
def test_every_export_can_be_read(spec, target):
    exported = attempt(export_job, spec, target)
    if isinstance(exported, InvalidInput):
        assert exported.field == "resources.accelerators"
        return
    if target is Target.SBATCH:
        assert exported.text.startswith("#!/bin/bash\n")
        return
    documents = list(yaml.safe_load_all(exported.text))
    assert all(isinstance(each, dict) for each in documents)
    assert [parse_document(each, "x").fields for each in _split(exported.text)] == documents


def _split(text):
    """A RayJob comes with its script, each a document of its own."""
    first, line, second = text.rpartition("---\napiVersion: ray.io/v1\n")
    return [first, line.removeprefix("---\n") + second] if line else [text]


@given(st.lists(values, min_size=1, max_size=20))
@settings(max_examples=15)
def test_the_shell_gives_back_what_was_meant(texts):
    """Values reach the command through bash, and through bash in bash, to the last byte."""
    assume(all("\r" not in text for text in texts))
    envs = {f"V{number}": text for number, text in enumerate(texts)}
    show = "".join(f"printf '%s\\0' \"$V{number}\"; " for number in range(len(texts)))
    spec = JobSpec(run=show, deadline="8h", envs=envs)
    script = 'srun() { "$@"; }\nHOME=$(mktemp -d)\n' + export_job(spec, Target.SBATCH).text
    shown = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert shown.decode().split("\0")[:-1] == texts
