"""Everything that can be wrong with a spec is one line with file, line, field, value and remedy."""

from __future__ import annotations

import pytest

from duetune.errors import InvalidInput
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.load import check_paths, load_resolved, load_spec, load_text
from duetune.jobs.spec.values import ACCELERATORS, DATASET, DEADLINE, DURATION, MODEL
from duetune.training.chat_templates import TEMPLATES
from duetune.training.learning_rate import Schedule
from support.places import ROOT

START = "model: gpt2\ndataset: imdb\ndeadline: 8h\n"
OWN = "run: python train.py\ndeadline: 8h\n"
FIELDS = (
    "model, dataset, deadline, hard_deadline, name, max_duration, budget, value, max_price, "
    "method, resources, training, checkpoint, workdir, setup, run, envs, secrets, tags, "
    "priority, project, fleet, policy"
)
NAME = "1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
METHODS = "one of auto, lora, qlora, full"
SCHEDULED = f"one of {', '.join(Schedule)}"
CODE = "code of a model is never run, because it would see the job's secrets"
TEMPLATE = "the text of a template; for a file write chat_template_path"
OTHER = "the built-in trainer does not support it; use your own command (run)"
PLANNED = "duetune decides where and on how many GPUs a job runs"
COMMAND = "shell commands, at most 100000 characters"


def refused(text):
    with pytest.raises(InvalidInput) as error:
        load_text(text, "job.yaml")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        (
            "deadline: 8h",
            "model",
            f"{MODEL}; it can be left out only with your own command (run)",
        ),
        (
            "deadline: 8h\nmodel: gpt2",
            "dataset",
            f"{DATASET}; it can be left out only with your own command (run)",
        ),
        ("model: gpt2\ndataset: d", "deadline", f"{DEADLINE}"),
        ("run: x", "deadline", f"{DEADLINE}"),
    ],
)
def test_what_is_missing_is_named(text, field, allowed):
    assert refused(text) == f"job.yaml {field} is required; expected {allowed}"


@pytest.mark.parametrize(
    ("line", "field", "shown", "allowed"),
    [
        ("deadlin: 8h", "field", "'deadlin'", "a known field; did you mean deadline?"),
        ("Budget: 3", "field", "'Budget'", "a known field; did you mean budget?"),
        ("on: push", "field", "'on'", f"one of {FIELDS}"),
        ("? ''\n: x", "field", "''", f"one of {FIELDS}"),
        (
            "resources: {acelerators: H100}",
            "resources field",
            "'acelerators'",
            "a known field; did you mean accelerators?",
        ),
        (
            "resources: {zone: x}",
            "resources field",
            "'zone'",
            "one of accelerators, gpus_per_member, spot",
        ),
        ("checkpoint: {interval: 3m}", "checkpoint field", "'interval'", "one of dir, every, keep"),
        (
            "training: {learnin_rate: 1}",
            "training field",
            "'learnin_rate'",
            "a known field; did you mean learning_rate?",
        ),
        ("training: {tf32: true}", "training field", "'tf32'", f"a supported field; {OTHER}"),
        (
            "training: {deepspeed: x.json}",
            "training field",
            "'deepspeed'",
            f"a supported field; {PLANNED}",
        ),
        (
            "training: {num_epochs: 3}",
            "training field",
            "'num_epochs'",
            "a supported field; write num_train_epochs",
        ),
        (
            "training: {output_dir: x}",
            "training field",
            "'output_dir'",
            "a supported field; results go to the job's own folder",
        ),
        (
            "training: {load_in_8bit: true}",
            "training field",
            "'load_in_8bit'",
            "a supported field; write method: qlora, which keeps frozen weights in 4 bits",
        ),
        (
            "training: {trust_remote_code: true}",
            "training field",
            "'trust_remote_code'",
            f"a supported field; {CODE}",
        ),
        (
            "training: {hub_token: hf_x}",
            "training field",
            "'hub_token'",
            "a supported field; do not write secrets into a spec; list HF_TOKEN under secrets",
        ),
    ],
)
def test_unknown_fields_are_refused_with_the_likely_one(line, field, shown, allowed):
    assert (
        refused(START + line) == f"job.yaml:4 {field}: {shown} is not allowed; expected {allowed}"
    )


@pytest.mark.parametrize(
    ("line", "field", "shown", "allowed"),
    [
        ("name: ''", "name", "''", NAME),
        ("name: a b", "name", "'a b'", NAME),
        ("name: -x", "name", "'-x'", NAME),
        ("name: 12", "name", "12", NAME),
        ("name: [a]", "name", "['a']", NAME),
        (
            "name: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            "name",
            "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'",
            NAME,
        ),
        ('name: "x\\n"', "name", "'x\\n'", NAME),
        (
            "max_duration: 8",
            "max_duration",
            "8",
            f"{DURATION}; a number needs a unit: write 8h for 8 hours",
        ),
        ("max_duration: forever", "max_duration", "'forever'", DURATION),
        ("budget: lots", "budget", "'lots'", "dollars above zero, such as 20 or $20"),
        ("budget: 0", "budget", "0", "dollars above zero, such as 20 or $20"),
        ("budget: .inf", "budget", "inf", "dollars above zero, such as 20 or $20"),
        ("budget: true", "budget", "True", "dollars above zero, such as 20 or $20"),
        ("value: -1", "value", "-1", "dollars, zero or more, such as 20 or $20"),
        ("max_price: free", "max_price", "'free'", "dollars above zero, such as 20 or $20"),
        (
            "method: dora",
            "method",
            "'dora'",
            f"{METHODS}; write method: lora with training.use_dora: true",
        ),
        ("method: LoRA", "method", "'LoRA'", METHODS),
        ("method: [lora]", "method", "['lora']", METHODS),
        (
            "training: {init_lora_weights: pissa}",
            "training.init_lora_weights",
            "'pissa'",
            "true, gaussian or orthogonal; others change the weights of the base model",
        ),
        (
            "training: {lr_scheduler_type: reduce_lr_on_plateau}",
            "training.lr_scheduler_type",
            "'reduce_lr_on_plateau'",
            f"{SCHEDULED}; this one follows the loss, so it would not be the same on every member",
        ),
        (
            "training: {lr_scheduler_type: cosine, lr_scheduler_kwargs: {power: 2}}",
            "training.lr_scheduler_kwargs.power",
            "2",
            "an option of cosine: one of num_cycles",
        ),
        (
            "training: {precision: bf16, bf16: true}",
            "training.bf16",
            "True",
            "no value, because precision is given: it says the same",
        ),
        (
            "training: {chat_template: no-such}",
            "training.chat_template",
            "'no-such'",
            f"one of {', '.join(TEMPLATES)}, or {TEMPLATE}",
        ),
        (
            "training: {report_to: [comet]}",
            "training.report_to",
            "['comet']",
            "none, all, or a list of wandb, mlflow, tensorboard",
        ),
        (
            "training: {load_best_model_at_end: true}",
            "training.load_best_model_at_end",
            "True",
            "no value without eval_strategy: steps or epoch",
        ),
        ("resources: H100", "resources", "'H100'", "a mapping with accelerators and spot"),
        (
            "resources: {spot: maybe}",
            "resources.spot",
            "'maybe'",
            "auto, only (or true), never (or false)",
        ),
        ("resources: {spot: 1}", "resources.spot", "1", "auto, only (or true), never (or false)"),
        (
            "resources: {spot: [x]}",
            "resources.spot",
            "['x']",
            "auto, only (or true), never (or false)",
        ),
        (
            "resources: {accelerators: 4}",
            "resources.accelerators",
            "4",
            ACCELERATORS,
        ),
        (
            "training: [lora]",
            "training",
            "['lora']",
            "a mapping of training fields, named as in TrainingArguments",
        ),
        ("training: {num_train_epochs: 0}", "training.num_train_epochs", "0", "a number above 0"),
        (
            "training: {num_train_epochs: .nan}",
            "training.num_train_epochs",
            "nan",
            "a number above 0",
        ),
        (
            "training: {max_steps: -1}",
            "training.max_steps",
            "-1",
            "a whole number, 1 or more; leave it out to train by epochs",
        ),
        (
            "training: {max_steps: 1.5}",
            "training.max_steps",
            "1.5",
            "a whole number, 1 or more; leave it out to train by epochs",
        ),
        (
            "training: {per_device_train_batch_size: '8'}",
            "training.per_device_train_batch_size",
            "'8'",
            "a whole number, 1 or more",
        ),
        (
            "training: {gradient_accumulation_steps: true}",
            "training.gradient_accumulation_steps",
            "True",
            "a whole number, 1 or more",
        ),
        (
            "training: {learning_rate: fast}",
            "training.learning_rate",
            "'fast'",
            "a number above 0, such as 2e-4",
        ),
        (
            "training: {learning_rate: -2e-4}",
            "training.learning_rate",
            "-0.0002",
            "a number above 0, such as 2e-4",
        ),
        (
            "training: {lr_scheduler_type: cosin}",
            "training.lr_scheduler_type",
            "'cosin'",
            SCHEDULED,
        ),
        (
            "training: {warmup_steps: 0.1}",
            "training.warmup_steps",
            "0.1",
            "a whole number, 0 or more; for a share of the steps use warmup_ratio",
        ),
        (
            "training: {warmup_steps: -1}",
            "training.warmup_steps",
            "-1",
            "a whole number, 0 or more",
        ),
        ("training: {warmup_ratio: 3}", "training.warmup_ratio", "3", "a number from 0 to 1"),
        ("training: {weight_decay: -1}", "training.weight_decay", "-1", "a number, 0 or more"),
        ("training: {max_grad_norm: x}", "training.max_grad_norm", "'x'", "a number, 0 or more"),
        ("training: {adam_beta1: 1}", "training.adam_beta1", "1", "a number from 0 to below 1"),
        (
            "training: {adam_epsilon: 0}",
            "training.adam_epsilon",
            "0",
            "a number above 0, at most 1",
        ),
        ("training: {seed: -1}", "training.seed", "-1", "a whole number from 0 to 4294967295"),
        ("training: {bf16: yes}", "training.bf16", "'yes'", "true or false"),
        (
            "training: {gradient_checkpointing: 1}",
            "training.gradient_checkpointing",
            "1",
            "true or false",
        ),
        ("training: {max_length: 1}", "training.max_length", "1", "a whole number, 2 or more"),
        ("training: {lora_r: 0}", "training.lora_r", "0", "a whole number, 1 or more"),
        ("training: {lora_dropout: 1}", "training.lora_dropout", "1", "a number from 0 to below 1"),
        (
            "training: {lora_target_modules: []}",
            "training.lora_target_modules",
            "[]",
            "all-linear, a name, a regular expression, or a list of names such as [q_proj, v_proj]",
        ),
        (
            "training: {eval_fraction: 1}",
            "training.eval_fraction",
            "1",
            "a number from 0 to below 1",
        ),
        (
            "training: {eval_dataset: 's3://x'}",
            "training.eval_dataset",
            "'s3://x'",
            f"{DATASET}; web addresses are not supported, so download it first",
        ),
        ("checkpoint: {every: often}", "checkpoint.every", "'often'", f"auto, or {DURATION}"),
        ("checkpoint: {keep: 0}", "checkpoint.keep", "0", "a whole number from 1 to 10000"),
        ("checkpoint: {dir: ''}", "checkpoint.dir", "''", "a path"),
        ("checkpoint: 3", "checkpoint", "3", "a mapping with dir, every and keep"),
        ("priority: high", "priority", "'high'", "a whole number from -1000 to 1000"),
        ("priority: 1001", "priority", "1001", "a whole number from -1000 to 1000"),
        ("policy: a b", "policy", "'a b'", "auto, or a policy name that 'duetune policies' lists"),
        ("policy: ''", "policy", "''", "auto, or a policy name that 'duetune policies' lists"),
        ("run: ''", "run", "''", COMMAND),
        ("run: [python, x]", "run", "['python', 'x']", COMMAND),
        (
            "setup: pip install x",
            "setup",
            "'pip install x'",
            "no value: setup is used only with your own command (run)",
        ),
        (
            "workdir: src",
            "workdir",
            "'src'",
            "no value: workdir is used only with your own command (run)",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(line, field, shown, allowed):
    assert (
        refused(START + line) == f"job.yaml:4 {field}: {shown} is not allowed; expected {allowed}"
    )


@pytest.mark.parametrize(
    ("text", "field", "shown", "allowed"),
    [
        (
            "training:\n  bf16: true\n  fp16: true",
            "job.yaml:6 training.fp16",
            "True",
            "false, because bf16 is true: only one can be",
        ),
        (
            "training:\n  warmup_steps: 5\n  warmup_ratio: 0.1",
            "job.yaml:6 training.warmup_ratio",
            "0.1",
            "no value, because warmup_steps is given: only one can be",
        ),
        (
            "training:\n  eval_dataset: e\n  eval_fraction: 0.1",
            "job.yaml:6 training.eval_fraction",
            "0.1",
            "no value, because eval_dataset is given: only one can be",
        ),
    ],
)
def test_fields_that_exclude_each_other(text, field, shown, allowed):
    assert refused(START + text) == f"{field}: {shown} is not allowed; expected {allowed}"


@pytest.mark.parametrize(
    ("text", "field", "shown", "allowed"),
    [
        (
            "training:\n  max_steps: 5\n  learning_rate: 1e-4",
            "job.yaml:5 training.learning_rate",
            "0.0001",
            "no value: your own command (run) sets it; only max_steps can be given",
        ),
        (
            "method: lora",
            "job.yaml:3 method",
            "'lora'",
            "no value: your own command (run) decides the method",
        ),
    ],
)
def test_what_an_own_command_decides_is_not_asked_for(text, field, shown, allowed):
    assert refused(OWN + text) == f"{field}: {shown} is not allowed; expected {allowed}"


def test_secrets_in_the_wrong_place_are_never_shown():
    for line in ("secrets: {T: hunter2}", "secrets: hunter2", "secrets: [T, 'hunter2 ']"):
        message = refused(START + line)
        assert message.startswith(
            "job.yaml:4 secrets: *** is not allowed; expected a list of names"
        )
        assert "hunter2" not in message


def test_several_problems_are_one_error_with_the_first_line_first():
    text = START + "priority: high\ntraining:\n  seed: x\n  lora_r: 0\nnam: x\n"
    assert refused(text) == (
        "job.yaml:4 priority: 'high' is not allowed; expected a whole number from -1000 to 1000; "
        "also wrong: training.seed, training.lora_r, nam"
    )


def test_not_all_of_very_many_problems_are_named():
    unknown = "".join(f"x{number}: 1\n" for number in range(12))
    assert refused(START + unknown).endswith(
        "; also wrong: x1, x2, x3, x4, x5, x6, x7, x8, and 3 more"
    )


def test_an_odd_name_stays_on_one_line():
    assert refused(START + 'a: 1\n"x\\ny": 1\n').endswith("; also wrong: x y")


def test_an_empty_section_says_nothing():
    spec = load_text(START + "training:\nresources:\nbudget:\ntags:\n")
    assert spec == load_text(START)


def test_a_wrong_deadline_hides_no_other_problem():
    assert refused("model: gpt2\ndataset: d\ndeadline: 8\nbudget: x").endswith(
        "write 8h for 8 hours; also wrong: budget"
    )


def test_the_file_is_named_by_its_name(tmp_path):
    (tmp_path / "mine.yaml").write_text(START + "priority: x\n")
    with pytest.raises(InvalidInput) as error:
        load_spec(tmp_path / "mine.yaml")
    assert error.value.field == "mine.yaml:4 priority"
    assert error.value.value == "x"
    assert error.value.allowed == "a whole number from -1000 to 1000"


def test_yaml_traps_do_what_was_meant():
    spec = load_text(
        "model: gpt2\ndataset: no\ndeadline: 8h\nname: on\n"
        "training: {learning_rate: 2e-4, seed: 017}\nenvs: {COUNTRY: NO, T: 1:30, V: 1e3, B: on}\n"
    )
    assert (spec.dataset, spec.name) == ("no", "on")
    assert (spec.training.learning_rate, spec.training.seed) == (2e-4, 17)
    assert spec.envs == {"COUNTRY": "NO", "T": "1:30", "V": "1000.0", "B": "on"}


class TestPaths:
    def spec(self, **fields):
        return JobSpec(**{"model": "gpt2", "dataset": "imdb", "deadline": "8h"} | fields)

    def wrong(self, **fields):
        with pytest.raises(InvalidInput) as error:
            check_paths(self.spec(**fields))
        return str(error.value)

    def test_names_on_the_hub_are_not_looked_up(self):
        check_paths(self.spec())

    def test_a_dataset_that_is_not_there(self):
        assert self.wrong(dataset="/no/d.jsonl") == (
            f"dataset: '/no/d.jsonl' is not allowed; expected {DATASET}; there is no such file or "
            "folder"
        )

    def test_a_held_out_dataset_that_is_not_there(self):
        assert self.wrong(training={"eval_dataset": "/no/d.jsonl"}) == (
            "training.eval_dataset: '/no/d.jsonl' is not allowed; "
            f"expected {DATASET}; there is no such file or folder"
        )

    def test_a_model_that_is_not_there(self):
        assert self.wrong(model="/no/model") == (
            f"model: '/no/model' is not allowed; expected {MODEL}; there is no such file or folder"
        )

    def test_a_model_that_is_a_file(self, tmp_path):
        (tmp_path / "m").write_text("")
        model = str(tmp_path / "m")
        assert self.wrong(model=model).endswith(f"expected {MODEL}; this is a file")

    def test_a_folder_for_checkpoints_that_is_a_file(self, tmp_path):
        (tmp_path / "c").write_text("")
        message = self.wrong(checkpoint={"dir": str(tmp_path / "c")})
        assert message.endswith(
            "is not allowed; expected a folder, or a path that does not exist yet"
        )

    def test_a_folder_for_the_command_that_is_not_there(self):
        with pytest.raises(InvalidInput) as error:
            check_paths(JobSpec(run="x", deadline="8h", workdir="/no/where"))
        assert str(error.value) == (
            "workdir: '/no/where' is not allowed; expected a folder that exists"
        )

    def test_a_spec_from_a_file_is_resolved_and_then_checked(self, tmp_path):
        (tmp_path / "d.jsonl").write_text("{}\n")
        (tmp_path / "job.yaml").write_text("model: gpt2\ndataset: d.jsonl\ndeadline: 8h\n")
        found = load_resolved(tmp_path / "job.yaml")
        check_paths(found)
        assert found.dataset == str(tmp_path / "d.jsonl")
        (tmp_path / "d.jsonl").unlink()
        with pytest.raises(InvalidInput) as error:
            check_paths(load_resolved(str(tmp_path / "job.yaml")))
        assert error.value.field == "dataset"


EXAMPLES = sorted((ROOT / "examples" / "jobs").glob("*.yaml"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_jobs(path):
    spec = load_spec(path)
    assert load_text(spec.to_yaml()) == spec


@pytest.mark.parametrize(
    ("method", "training", "field", "allowed"),
    [
        ("lora", "bnb_4bit_quant_type: nf4", "bnb_4bit_quant_type", "method: lora; it needs qlora"),
        ("full", "use_dora: true", "use_dora", "method: full; it needs lora or qlora"),
        ("full", "load_in_4bit: true", "load_in_4bit", "method: full; it needs qlora"),
    ],
)
def test_settings_of_another_method_are_refused(method, training, field, allowed):
    text = f"{START}method: {method}\ntraining: {{{training}}}"
    assert f"training.{field}: " in refused(text)
    assert refused(text).endswith(f"no value with {allowed}")


@pytest.mark.parametrize("method", ["auto", "lora", "qlora"])
def test_weights_in_4_bits_are_qlora_in_other_words(method):
    spec = load_text(f"{START}method: {method}\ntraining: {{load_in_4bit: true}}")
    assert spec.method == "qlora"
    assert load_text(spec.to_yaml()) == spec
    assert load_text(f"{START}training: {{load_in_4bit: false}}").method == "auto"
    assert load_text(f"{START}training: {{bnb_4bit_quant_type: fp4}}").method == "qlora"


def test_trackers_are_none_all_or_named():
    for words, expected in (
        ("none", ()),
        ("all", ("wandb", "mlflow", "tensorboard")),
        ("wandb", ("wandb",)),
        ("[mlflow, wandb]", ("mlflow", "wandb")),
    ):
        spec = load_text(f"{START}training: {{report_to: {words}}}")
        assert spec.training.report_to == expected
        assert load_text(spec.to_yaml()) == spec


def test_the_file_of_a_chat_template_is_found_beside_the_spec(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    path = tmp_path / "job.yaml"
    text = "model: gpt2\ndataset: rows.jsonl\ndeadline: 8h\ntraining: {chat_template_path: %s}"
    path.write_text(text % "mine.jinja")
    found = load_resolved(path).training.chat_template_path
    assert found == str(tmp_path / "mine.jinja")
    path.write_text(text % "none.jinja")
    with pytest.raises(InvalidInput, match=r"training\.chat_template_path.*no such file"):
        check_paths(load_resolved(path))


def test_a_job_names_its_fleet_and_keeps_it_in_every_form():
    spec = load_text("run: ls\ndeadline: 1h\nfleet: campus\n")
    assert spec.fleet == "campus"
    assert load_text(spec.to_yaml()).fleet == spec.resolved("/data").fleet == "campus"
    assert spec.amended(fleet="mine:eu:2").fleet == "mine:eu:2"
    assert "fleet" not in load_text("run: ls\ndeadline: 1h\n").document()
    with pytest.raises(InvalidInput, match="fleet: 'two words' is not allowed; expected a name"):
        load_text("run: ls\ndeadline: 1h\nfleet: two words\n")
