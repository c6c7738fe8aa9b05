"""Files of other tools become specs, and nothing in them goes unmentioned."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from duetune.errors import InvalidInput
from duetune.interop.import_jobs.foreign_file import is_secret_name
from duetune.interop.import_jobs.reading import (
    Tool,
    import_job,
    recognised,
    relocated,
    written,
)
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.spec.load import load_text
from duetune.jobs.spec.sections import Spot
from duetune.jobs.spec.values import DATASET
from duetune.training.dataset_rows import rows_of

REST_OF_AXOLOTL = "otherwise keep axolotl, with a spec that has 'run: axolotl train FILE'"
AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
load_in_8bit: false
load_in_4bit: false
strict: false
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
dataset_prepared_path: last_run_prepared
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
lora_model_dir:
sequence_len: 2048
sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [gate_proj, down_proj]
wandb_project:
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
tf32: false
gradient_checkpointing: true
logging_steps: 1
warmup_steps: 10
saves_per_epoch: 1
save_total_limit: 4
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
"""
FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
output_dir: saves/x
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: stanfordnlp/imdb
report_to: none
learning_rate: 0.0001
lr_scheduler_type: cosine
use_peft: true
lora_target_modules: [q_proj, v_proj]
env: {CUDA_VISIBLE_DEVICES: 0, MODE: fast}
"""
SKYPILOT = """
name: my-task
workdir: src
num_nodes: 2
resources:
  infra: aws
  accelerators: A100:8
  use_spot: true
  labels: {team: research}
envs: {MODEL_SIZE: 13b, WANDB_API_KEY: abc123, ASK:}
secrets: {HF_TOKEN: hunter2}
file_mounts: {/data: s3://x}
setup: pip install -r requirements.txt
run: |
  python train.py
"""


def imported(text, tool=None):
    return import_job(text, tool, deadline="8h")


def notes(found):
    return {note.field: note.says for note in found.notes}


def refused(text, tool=None, **options):
    with pytest.raises(InvalidInput) as error:
        import_job(text, tool, **{"deadline": "8h"} | options)
    return str(error.value)


def problem(where, shown, allowed):
    wrong = " is required" if shown == "None" else f": {shown} is not allowed"
    return f"standard input{where}{wrong}; expected {allowed}"


class TestRecognised:
    @pytest.mark.parametrize(
        ("text", "tool"),
        [(AXOLOTL, "axolotl"), (FACTORY, "llamafactory"), (TRL, "trl"), (SKYPILOT, "skypilot"),
         ("resources: {cpus: 4}\nrun: x", "skypilot")],
    )  # fmt: skip
    def test_by_its_fields(self, text, tool):
        assert imported(text).tool == tool

    def test_a_job_spec_is_none(self):
        assert refused("model: a\ndataset: b\ndeadline: 8h") == (
            "standard input: 'a job spec' is not allowed; expected a file of another tool"
        )

    def test_unknown_fields_are_shown(self):
        assert refused("b: 1\na: 2") == (
            "standard input: 'the fields a, b' is not allowed; expected a file of skypilot, "
            "axolotl, llamafactory, trl; name the tool with --from"
        )

    def test_a_pipeline_of_tasks_is_refused(self):
        assert refused("name: pipeline\n---\nrun: x\n") == (
            "standard input:3: 'a second document (---)' is not allowed; expected one document "
            "per file"
        )

    def test_the_name_of_the_file_is_in_errors(self, tmp_path):
        (tmp_path / "c.yml").write_text("base_model: x\ndatasets: 3\n")
        with pytest.raises(InvalidInput) as error:
            import_job(tmp_path / "c.yml")
        assert str(error.value) == (
            "c.yml:2 datasets: 3 is not allowed; expected a list of datasets, each with its path"
        )

    def test_recognised_needs_no_reading(self):
        from duetune.jobs.spec.yaml_document import parse_document  # noqa: PLC0415 - this test's own

        assert recognised(parse_document("base_model: 3", "x")) is Tool.AXOLOTL


class TestDeadline:
    def test_a_day_is_assumed_and_said(self):
        found = import_job(TRL)
        assert found.spec.deadline == timedelta(days=1)
        assert notes(found)["deadline"] == "1d is assumed; set it to when you need the result"

    def test_a_given_one_needs_no_note(self):
        assert "deadline" not in notes(imported(TRL))

    def test_a_wrong_one_is_refused(self):
        assert refused(TRL, deadline="soon").startswith("deadline: 'soon' is not allowed; expected")


class TestAxolotl:
    def test_everything_that_has_a_name_here(self):
        spec = imported(AXOLOTL).spec
        assert (spec.model, spec.dataset) == (
            "NousResearch/Llama-3.2-1B",
            "teknium/GPT4-LLM-Cleaned",
        )
        assert spec.method == "lora"
        assert spec.checkpoint.keep == 4
        assert spec.training.given == {
            "num_train_epochs": 1.0,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 2e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 10,
            "weight_decay": 0.0,
            "bf16": True,
            "gradient_checkpointing": True,
            "logging_steps": 1,
            "max_length": 2048,
            "lora_r": 16,
            "lora_alpha": 32.0,
            "lora_dropout": 0.05,
            "lora_target_modules": ["gate_proj", "down_proj"],
            "eval_fraction": 0.1,
            "optim": "adamw_8bit",
            "packing": True,
            "pad_token": "<|end_of_text|>",
        }

    def test_everything_else_is_noted(self):
        assert notes(imported(AXOLOTL)) == {
            "datasets.0": "type alpaca: rows need the columns text, prompt and completion, "
            "messages, conversations, or instruction and output; convert others first",
            "bf16": "auto is read as true",
            "gradient_accumulation_steps": "a step has 2 x 2 = 4 examples here, on any number of "
            "GPUs; there each GPU had as many",
            "dataset_prepared_path": "'last_run_prepared' is not imported; the data is prepared "
            "in the job's own folder",
            "output_dir": "'./outputs/lora-out' is not imported; results go to the job's own "
            "folder",
            "saves_per_epoch": "1 is not imported; checkpoints follow the rate of "
            "preemptions; see checkpoint.every",
            "load_in_8bit, strict, tf32": "switched off there, and left out here",
            "training.max_steps": "plan needs it if the card of teknium/GPT4-LLM-Cleaned on the "
            "hub does not state its size",
        }

    def test_what_axolotl_does_by_default_is_written_out(self):
        found = imported("base_model: m\ndatasets: [{path: d}]\nlearning_rate: 0.1")
        assert found.spec.method == "full"
        assert found.spec.training.given == {
            "num_train_epochs": 1.0,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "learning_rate": 0.1,
            "lr_scheduler_type": "cosine",
            "max_length": 512,
            "eval_fraction": 0.0,
        }

    @pytest.mark.parametrize("line", ["adapter: qlora", "adapter: lora\nload_in_4bit: true"])
    def test_qlora_stays_qlora(self, line):
        found = imported(f"base_model: m\ndatasets: [{{path: d}}]\n{line}")
        assert found.spec.method == "qlora"
        assert not {"adapter", "load_in_4bit"} & set(notes(found))

    def test_eight_bits_are_noted(self):
        text = "base_model: m\ndatasets: [{path: d}]\nadapter: lora\nload_in_8bit: true"
        assert "write method: qlora" in notes(imported(text))["load_in_8bit"]

    @pytest.mark.parametrize(
        ("line", "field", "value"),
        [
            ("lora_target_linear: true", "lora_target_modules", "all-linear"),
            ("lora_target_modules: all-linear", "lora_target_modules", "all-linear"),
            ("fp16: true\nbf16: auto", "fp16", True),
            ("bf16: full", "bf16", True),
            ("bf16: no", "bf16", False),
            ("bf16: no", "fp16", False),
            ("gradient_checkpointing: offload", "gradient_checkpointing", True),
            ("max_steps: 50", "max_steps", 50),
            ("max_steps: -1", "max_steps", None),
            ("warmup_ratio: 0.1", "warmup_ratio", 0.1),
            ("warmup_steps: 0\nwarmup_ratio: 0.1", "warmup_ratio", 0.1),
            ("lr_scheduler: rex", "lr_scheduler_type", "linear"),
            ("lr_scheduler: cosine_with_restarts", "lr_scheduler_type", "cosine_with_restarts"),
            ("lr_scheduler: cosine_with_rex", "lr_scheduler_type", "cosine"),
            ("optimizer: lion_8bit", "optim", "lion_8bit"),
            ("optimizer: came_pytorch", "optim", None),
            ("peft_use_dora: true", "use_dora", True),
            ("lora_modules_to_save: [lm_head]", "lora_modules_to_save", ["lm_head"]),
            ("train_on_inputs: true", "assistant_only_loss", False),
            ("chat_template: chatml", "chat_template", "chatml"),
            ("chat_template: tokenizer_default", "chat_template", None),
            ("wandb_project: p", "report_to", ["wandb"]),
            ("wandb_project: p", "project", "p"),
            ("hub_model_id: me/it", "push_to_hub", True),
            ("eval_strategy: steps\neval_steps: 50", "eval_steps", 50),
            ("eval_steps: 50", "eval_steps", None),
            ("early_stopping_patience: 3", "early_stopping_patience", None),
            ("learning_rate: '2e-5'", "learning_rate", 2e-5),
            ("test_datasets: [{path: e.jsonl}]\nval_set_size: 0.1", "eval_dataset", "e.jsonl"),
            ("val_set_size: 0.2", "eval_fraction", 0.2),
            ("val_set_size: 500", "eval_fraction", None),
        ],
    )
    def test_other_forms(self, line, field, value):
        text = f"base_model: m\ndatasets: [{{path: d}}]\nadapter: lora\n{line}"
        assert imported(text).spec.training.given.get(field) == value

    def test_warmup_steps_go_before_the_ratio(self):
        text = "base_model: m\ndatasets: [{path: d}]\nwarmup_steps: 5\nwarmup_ratio: 0.1"
        found = imported(text)
        assert found.spec.training.warmup_steps == 5
        assert notes(found)["warmup_ratio"] == "0.1 is not imported: warmup_steps overrides it"

    def test_lora_options_without_an_adapter_are_noted(self):
        found = imported("base_model: m\ndatasets: [{path: d}]\nlora_r: 8")
        assert found.spec.training.lora_r is None
        assert notes(found)["lora_r"] == "8 is not imported: all weights are trained, without LoRA"

    def test_a_file_behind_a_format_is_the_dataset(self):
        found = imported("base_model: m\ndatasets: [{path: json, data_files: [x.jsonl]}]")
        assert found.spec.dataset == "x.jsonl"

    def test_only_one_dataset_is_taken(self):
        found = imported("base_model: m\ndatasets: [{path: a}, {path: b}, {path: c}]")
        assert found.spec.dataset == "a"
        assert [note.says for note in found.notes if note.field == "datasets"] == [
            "b is not imported: a job has one dataset; join the files",
            "c is not imported: a job has one dataset; join the files",
        ]

    @pytest.mark.parametrize(
        ("text", "where", "shown", "allowed"),
        [
            (
                "base_model: m\nrl: dpo",
                ":2 rl",
                "'dpo'",
                f"supervised fine-tuning, without rl; {REST_OF_AXOLOTL}",
            ),
            (
                "base_model: m\nadapter: llama-adapter",
                ":2 adapter",
                "'llama-adapter'",
                f"lora, qlora or none; {REST_OF_AXOLOTL}",
            ),
            ("base_model:\ndatasets: []", ":1 base_model", "None", "the model to fine-tune"),
            ("base_model: m", " datasets", "None", "a list of datasets, each with its path"),
            (
                "base_model: m\ndatasets: [x]",
                ":2 datasets",
                "['x']",
                "a list of datasets, each with its path",
            ),
            (
                "base_model: m\ndatasets: [{type: x}]",
                ":2 datasets.0.path",
                "None",
                "a file, folder or name on the hub",
            ),
            ("base_model: [m]", ":1 base_model", "['m']", "text"),
            (
                "base_model: m\ndatasets: [{path: d}]\nmicro_batch_size: big",
                ":3 micro_batch_size",
                "'big'",
                "a number",
            ),
            (
                "base_model: m\ndatasets: [{path: d}]\nmicro_batch_size: 1.5",
                ":3 micro_batch_size",
                "1.5",
                "a whole number",
            ),
            (
                "base_model: m\ndatasets: [{path: d}]\nbf16: [x]",
                ":3 bf16",
                "['x']",
                "true, false or a word",
            ),
            (
                "base_model: m\ndatasets: [{path: d}]\nload_in_4bit: 4",
                ":3 load_in_4bit",
                "4",
                "true or false",
            ),
            (
                "base_model: m\ndatasets: [{path: d}]\nlearning_rate: -1",
                " -> training.learning_rate",
                "-1.0",
                "a number above 0, such as 2e-4",
            ),
            (
                "base_model: m\ndatasets: [{path: 's3://b/x'}]",
                " -> dataset",
                "'s3://b/x'",
                f"{DATASET}; web addresses are not supported, so download it first",
            ),
        ],
    )
    def test_what_cannot_be_a_job_is_refused(self, text, where, shown, allowed):
        message = problem(where, shown, allowed)
        assert refused(text, Tool.AXOLOTL) == message


class TestLlamaFactory:
    def test_everything_that_has_a_name_here(self, tmp_path):
        (tmp_path / "data").mkdir()
        entry = {"file_name": "identity.json", "columns": {"prompt": "q"}}
        (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"identity": entry}))
        (tmp_path / "examples").mkdir()
        (tmp_path / "examples" / "x.yaml").write_text(FACTORY)
        found = import_job(tmp_path / "examples" / "x.yaml", deadline="8h")
        assert found.spec.model == "meta-llama/Meta-Llama-3-8B-Instruct"
        assert found.spec.dataset == "../data/identity.json"
        assert found.spec.training.given == {
            "num_train_epochs": 3.0,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.1,
            "bf16": True,
            "gradient_checkpointing": True,
            "max_length": 2048,
            "lora_r": 8,
            "lora_alpha": 16.0,
            "lora_target_modules": "all-linear",
            "eval_fraction": 0.0,
        }
        assert notes(found) == {
            "dataset": "alpaca_en_demo is not imported: a job has one dataset; join the files",
            "dataset identity": "formatting alpaca, names prompt q: with -o the rows are written "
            "as messages to a file beside the spec",
            "gradient_accumulation_steps": "a step has 1 x 8 = 8 examples here, on any number of "
            "GPUs; there each GPU had as many",
            "trust_remote_code": "True is not imported; code from the hub is never run",
            "template": "'llama3' is not imported; the model's own chat template is used",
            "max_samples": "1000 is not imported; duetune trains on the whole dataset",
            "output_dir": "'saves/x' is not imported; results go to the job's own folder",
            "ddp_timeout": "180000000 is not imported; duetune plans where and on how many GPUs "
            "a job runs",
        }

    def test_a_dataset_on_the_hub(self, tmp_path):
        (tmp_path / "sets").mkdir()
        (tmp_path / "sets" / "dataset_info.json").write_text('{"a": {"hf_hub_url": "o/a"}}')
        text = "model_name_or_path: m\nfinetuning_type: full\ndataset: a\ndataset_dir: sets"
        (tmp_path / "x.yaml").write_text(text)
        found = import_job(tmp_path / "x.yaml")
        assert (found.spec.dataset, found.spec.method) == ("o/a", "full")

    def test_its_list_may_be_beside_the_file(self, tmp_path):
        entry = {"a": {"file_name": "a.json", "ranking": True}}
        (tmp_path / "dataset_info.json").write_text(json.dumps(entry))
        (tmp_path / "x.yaml").write_text("model_name_or_path: m\nstage: sft\ndataset: a")
        found = import_job(tmp_path / "x.yaml")
        assert found.spec.dataset == "a.json"
        assert notes(found)["dataset_info.json a"] == "ranking is not imported"

    def test_an_unknown_dataset_is_a_guess_and_says_so(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        found = imported("model_name_or_path: m\nstage: sft\ndataset: mine\nlora_target: q,v")
        assert found.spec.dataset == "data/mine.json"
        assert found.spec.training.lora_target_modules == ("q", "v")
        says = "mine is not in a dataset_info.json nearby; data/mine.json is a guess"
        assert notes(found)["dataset"] == says

    def test_four_bits_are_qlora_and_eight_are_noted(self):
        text = "model_name_or_path: m\nstage: sft\ndataset: a\nquantization_bit: "
        found = imported(f"{text}4\ndouble_quantization: false\nadditional_target: lm_head")
        assert found.spec.method == "qlora"
        assert found.spec.training.use_bnb_nested_quant is False
        assert found.spec.training.lora_modules_to_save == ("lm_head",)
        found = imported(f"{text}8")
        assert found.spec.method == "lora"
        assert notes(found)["quantization_bit"] == (
            "8: the base model is not quantised here, so it needs more memory"
        )

    def test_pure_bfloat16_is_kept(self):
        text = "model_name_or_path: m\nfinetuning_type: full\ndataset: a\npure_bf16: true"
        training = imported(text, Tool.LLAMAFACTORY).spec.training
        assert (training.precision, training.bf16) == ("bf16", None)

    def test_an_own_dataset_for_evaluation(self):
        found = imported("model_name_or_path: m\nstage: sft\ndataset: a\neval_dataset: b")
        assert found.spec.training.eval_dataset == "data/b.json"

    def renamed(self, folder, entry, rows):
        """What the trainer reads of rows after an import to another folder."""
        (folder / "out").mkdir()
        (folder / "a.json").write_text(json.dumps(rows))
        info = {"a": {"file_name": "a.json", **entry}}
        (folder / "dataset_info.json").write_text(json.dumps(info))
        (folder / "x.yaml").write_text("model_name_or_path: m\nstage: sft\ndataset: a")
        found = written(import_job(folder / "x.yaml"), folder, folder / "out" / "job.yaml")
        place = folder / "out" / found.spec.dataset
        return place, [
            [(turn.role, turn.content) for turn in row.messages] for row in rows_of(place)
        ]

    def test_renamed_columns_of_alpaca_are_converted(self, tmp_path):
        names = {"prompt": "q", "query": "more", "response": "a", "history": "before"}
        rows = [
            {"q": "Add", "more": "1 2", "a": "3"},
            {"q": "Go on", "a": "4", "before": [["Count", "1 2 3"]], "system": "Be brief"},
        ]
        place, found = self.renamed(tmp_path, {"columns": names}, rows)
        assert place.name == "job-dataset.jsonl"
        assert found == [
            [("user", "Add\n1 2"), ("assistant", "3")],
            [
                ("system", "Be brief"),
                ("user", "Count"),
                ("assistant", "1 2 3"),
                ("user", "Go on"),
                ("assistant", "4"),
            ],
        ]

    def test_renamed_tags_of_sharegpt_are_converted(self, tmp_path):
        entry = {
            "formatting": "sharegpt",
            "columns": {"messages": "chat"},
            "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "me"},
        }
        rows = [{"chat": [{"who": "me", "says": "Hi"}, {"who": "gpt", "says": "Hello"}]}]
        _, found = self.renamed(tmp_path, entry, rows)
        assert found == [[("user", "Hi"), ("assistant", "Hello")]]

    def test_the_usual_names_need_no_conversion(self, tmp_path):
        tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user"}
        tags["assistant_tag"] = "assistant"
        entry = {"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": tags}
        talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        place, found = self.renamed(tmp_path, entry, [{"messages": talk}])
        assert place.resolve() == tmp_path / "a.json"
        assert found == [[("user", "Hi"), ("assistant", "Hello")]]

    def test_a_row_without_the_columns_is_refused_with_its_place(self, tmp_path):
        with pytest.raises(InvalidInput, match=r"a\.json.*an object with q"):
            self.renamed(tmp_path, {"columns": {"prompt": "q"}}, [{"instruction": "x"}])

    def test_a_broken_dataset_info_is_refused(self, tmp_path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "dataset_info.json").write_text("{")
        (tmp_path / "x.yaml").write_text("model_name_or_path: m\nstage: sft\ndataset: a")
        with pytest.raises(InvalidInput, match="readable JSON of datasets"):
            import_job(tmp_path / "x.yaml")

    @pytest.mark.parametrize(
        ("text", "where", "shown", "allowed"),
        [
            (
                "model_name_or_path: m\nstage: dpo",
                ":2 stage",
                "'dpo'",
                (
                    "sft; otherwise keep LLaMA-Factory, with a spec that has 'run: "
                    "llamafactory-cli train FILE'"
                ),
            ),
            (
                "model_name_or_path: m\nfinetuning_type: oft",
                ":2 finetuning_type",
                "'oft'",
                (
                    "lora or full; otherwise keep LLaMA-Factory, with a spec that has 'run: "
                    "llamafactory-cli train FILE'"
                ),
            ),
            ("stage: sft", " model_name_or_path", "None", "the model to fine-tune"),
            ("model_name_or_path: m", " dataset", "None", "a name that dataset_info.json explains"),
            (
                "model_name_or_path: m\ndataset: {a: 1}",
                ":2 dataset",
                "{'a': 1}",
                "names of datasets",
            ),
        ],
    )
    def test_what_cannot_be_a_job_is_refused(self, text, where, shown, allowed):
        message = problem(where, shown, allowed)
        assert refused(text, Tool.LLAMAFACTORY) == message


class TestTrl:
    def test_everything_that_has_a_name_here(self):
        found = imported(TRL)
        assert (found.spec.model, found.spec.dataset) == ("Qwen/Qwen2.5-0.5B", "stanfordnlp/imdb")
        assert found.spec.method == "lora"
        assert found.spec.envs == {"MODE": "fast"}
        assert found.spec.training.given == {
            "num_train_epochs": 3.0,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "cosine",
            "bf16": True,
            "gradient_checkpointing": True,
            "max_length": 1024,
            "lora_r": 16,
            "lora_alpha": 32.0,
            "lora_dropout": 0.05,
            "lora_target_modules": ["q_proj", "v_proj"],
            "eval_fraction": 0.0,
            "assistant_only_loss": False,
        }
        assert notes(found) == {
            "gradient_accumulation_steps": "a step has 8 x 1 = 8 examples here, on any number of "
            "GPUs; there each GPU had as many",
            "env.CUDA_VISIBLE_DEVICES": "is not imported: every node sets its own",
            "training.max_steps": "plan needs it if the card of stanfordnlp/imdb on the hub does "
            "not state its size",
        }

    def test_without_peft_all_weights_are_trained(self):
        found = imported("model_name_or_path: m\ndataset_name: d\nfp16: true")
        assert found.spec.method == "full"
        assert found.spec.training.given["fp16"] is True
        assert "bf16" not in found.spec.training.given
        assert "lora_r" not in found.spec.training.given

    def test_what_trl_shares_with_the_spec_is_kept(self):
        text = (
            "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nload_in_4bit: true\n"
            "report_to: [wandb, comet]\noptim: adafactor\nuse_dora: true\npush_to_hub: true\n"
            "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 0.1}\n"
            "eval_strategy: epoch\nload_best_model_at_end: true\nassistant_only_loss: true"
        )
        found = imported(text)
        given = found.spec.training.given
        assert found.spec.method == "qlora"
        assert given["lr_scheduler_kwargs"] == {"min_lr_rate": 0.1}
        assert given["report_to"] == ["wandb"]
        assert {"optim", "use_dora", "eval_strategy", "load_best_model_at_end"} <= set(given)
        assert given["assistant_only_loss"] is True
        assert notes(found)["report_to"].startswith("comet is not imported")
        assert notes(found)["push_to_hub"] == "is not imported: it needs hub_model_id here"
        pure = imported("model_name_or_path: m\ndataset_name: d\ndtype: bfloat16")
        assert pure.spec.training.precision == "bf16"

    def test_a_mixture_gives_its_first(self):
        found = imported(
            "model_name_or_path: m\n"
            "datasets: [{path: json, data_files: a.jsonl, split: train}, {path: b}]"
        )
        assert found.spec.dataset == "a.jsonl"
        assert notes(found)["datasets.0"] == "split train is not imported"
        assert notes(found)["datasets"] == "b is not imported: a job has one dataset"

    def test_older_names_and_shares_of_warmup(self):
        text = "model_name_or_path: m\ndataset_name: d\nmax_seq_length: 77\nwarmup_steps: 0.05"
        given = imported(text).spec.training.given
        assert (given["max_length"], given["warmup_ratio"]) == (77, 0.05)

    def test_secrets_in_its_environment_are_not_copied(self):
        text = (
            "model_name_or_path: m\ndataset_name: d\nenv: {HF_TOKEN: hunter2}\nhub_token: hunter2"
        )
        found = imported(text)
        assert found.spec.secrets == ("HF_TOKEN",)
        assert "hunter2" not in found.to_yaml("x")

    @pytest.mark.parametrize(
        ("text", "where", "shown", "allowed"),
        [
            (
                "model_name_or_path: m\nbeta: 0.1",
                ":2 beta",
                "'an option of trl dpo'",
                (
                    "a file for trl sft; otherwise keep TRL, with a spec that has 'run: trl dpo "
                    "--config FILE'"
                ),
            ),
            ("dataset_name: d", " model_name_or_path", "None", "the model to fine-tune"),
            ("model_name_or_path: m", " dataset_name", "None", "the dataset to train on"),
            (
                "model_name_or_path: m\ndatasets: []",
                ":2 datasets",
                "[]",
                "a list of datasets, each with its path",
            ),
            ("model_name_or_path: m\ndataset_name: d\nenv: 3", ":3 env", "3", "a mapping"),
        ],
    )
    def test_what_cannot_be_a_job_is_refused(self, text, where, shown, allowed):
        message = problem(where, shown, allowed)
        assert refused(text, Tool.TRL) == message


class TestSkyPilot:
    def test_everything_that_has_a_name_here(self):
        found = imported(SKYPILOT)
        assert found.spec == JobSpec(
            name="my-task",
            workdir="src",
            deadline="8h",
            resources={"accelerators": "A100:1", "spot": "only"},
            setup="pip install -r requirements.txt",
            run="python train.py\n",
            envs={"MODEL_SIZE": "13b", "ASK": None},
            secrets=["HF_TOKEN", "WANDB_API_KEY"],
            tags={"team": "research"},
        )
        assert notes(found) == {
            "num_nodes": "2 is not imported: your own command runs on one node here",
            "resources.accelerators": "A100:8 becomes A100:1: your own command runs on one GPU "
            "here",
            "resources.infra": "'aws' is not imported; duetune plans where a job runs",
            "envs.WANDB_API_KEY": "is listed under secrets, without its value",
            "file_mounts": "the mapping is not imported; put what it mounts into workdir, or "
            "fetch it in setup",
        }

    def test_no_secret_is_repeated_anywhere(self):
        found = imported(SKYPILOT)
        everything = found.to_yaml("x") + repr(found)
        assert "hunter2" not in everything
        assert "abc123" not in everything

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("H100", "H100:1"),
            ("H100:4", "H100:1"),
            ("{H100: 4}", "H100:1"),
            ("{A100:1, V100:1}", "A100:1"),
            ("['L4:2', 'H100:1']", "L4:1"),
            ("h100:2", "H100:1"),
            ("H100:2.0", "H100:1"),
        ],
    )
    def test_accelerators(self, given, expected):
        found = imported(f"run: x\nresources: {{accelerators: {given}}}")
        assert str(found.spec.resources.accelerators) == expected

    def test_other_kinds_are_noted(self):
        found = imported("run: x\nresources: {accelerators: ['L4:2', 'H100:1']}")
        assert [note.says for note in found.notes if note.field == "resources.accelerators"] == [
            "H100:1 is not imported: a job has one kind of GPU",
            "L4:2 becomes L4:1: your own command runs on one GPU here",
        ]

    @pytest.mark.parametrize(
        ("resources", "spot"),
        [
            ("{use_spot: true}", Spot.ONLY),
            ("{use_spot: yes}", Spot.ONLY),
            ("{use_spot: false}", Spot.NEVER),
            ("{}", Spot.AUTO),
            ("{any_of: [{use_spot: true}, {use_spot: false}]}", Spot.AUTO),
            ("{use_spot: true, any_of: [{infra: aws}, {infra: gcp}]}", Spot.ONLY),
            ("{ordered: [{use_spot: true}, {}]}", Spot.AUTO),
        ],
    )
    def test_spot(self, resources, spot):
        assert imported(f"run: x\nresources: {resources}").spec.resources.spot is spot

    def test_spot_that_is_not_said_is_noted(self):
        assert notes(imported("run: x"))["resources.use_spot"] == (
            "not given: spot and on-demand are mixed here; see resources.spot"
        )

    def test_choices_give_their_first_gpu(self):
        found = imported(
            "run: x\nresources: {any_of: [{accelerators: L4:2, infra: aws}, {accelerators: T4:2}]}"
        )
        assert str(found.spec.resources.accelerators) == "L4:1"
        assert notes(found)["resources.any_of"] == "infra aws is not imported"

    @pytest.mark.parametrize(
        ("text", "where", "shown", "allowed"),
        [
            (
                "run: x\nservice: {replicas: 2}",
                ":2 service",
                "'a service'",
                "a job that ends: duetune does not run services",
            ),
            ("num_nodes: 2", " run", "None", "the command that trains"),
            ("run: ' '", ":1 run", "' '", "the command that trains"),
            ("run: x\nresources: 3", ":2 resources", "3", "a mapping"),
            (
                "run: x\nresources: {use_spot: often}",
                ":2 resources.use_spot",
                "'often'",
                "true or false",
            ),
            (
                "run: x\nresources: {any_of: {a: 1}}",
                ":2 resources.any_of",
                "{'a': 1}",
                "a list of resources",
            ),
            (
                "run: x\nresources: {accelerators: H100:0.5}",
                ":2 resources.accelerators",
                "'H100:0.5'",
                "a name and a whole number of GPUs",
            ),
            (
                "run: x\nresources: {accelerators: {H100: many}}",
                ":2 resources.accelerators",
                "'H100:many'",
                "a name and a whole number of GPUs",
            ),
            ("run: x\nnum_nodes: two", ":2 num_nodes", "'two'", "a number"),
            ("run: x\nenvs: [A]", ":2 envs", "['A']", "a mapping"),
            ("run: x\nresources: {labels: x}", ":2 resources.labels", "'x'", "a mapping"),
        ],
    )
    def test_what_cannot_be_a_job_is_refused(self, text, where, shown, allowed):
        message = problem(where, shown, allowed)
        assert refused(text, Tool.SKYPILOT) == message

    @pytest.mark.parametrize(
        ("line", "field", "says"),
        [
            ("name: my task", "name", ("'my task' is not imported: letters, digits, '.', '_', "
             "'-' only")),
            ("workdir: {url: x}", "workdir", "a repository; fetch it in setup"),
            ("envs: {1A: x}", "envs.1A", "is not imported: the name is reserved or not valid"),
            ("envs: {DUETUNE_X: x}", "envs.DUETUNE_X", ("is not imported: the name is reserved or "
            "not valid")),
            ("resources: {disk_size: 256}", "resources.disk_size", "256 is not imported"),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_is_noted(self, line, field, says):
        assert notes(imported(f"run: x\n{line}"))[field] == says


class TestFile:
    def test_it_begins_with_the_notes_and_is_a_spec(self):
        found = imported(SKYPILOT)
        text = found.to_yaml("sky\n.yaml")
        lines = text.splitlines()
        assert lines[:2] == ["# Imported from skypilot (sky .yaml).", "# Differences:"]
        assert sum(line.startswith("#   ") for line in lines) == len(found.notes)
        assert load_text(text) == found.spec

    def test_paths_follow_the_file(self, tmp_path):
        source, target = tmp_path / "configs", tmp_path / "jobs"
        (source / "model").mkdir(parents=True)
        spec = JobSpec(
            model="model",
            dataset="data/x.jsonl",
            deadline="8h",
            training={"eval_dataset": "/abs/e.jsonl"},
        )
        moved = relocated(spec, source, target)
        assert moved.model == "../configs/model"
        assert moved.dataset == "../configs/data/x.jsonl"
        assert moved.training.eval_dataset == "/abs/e.jsonl"
        assert moved.name == spec.name
        assert relocated(spec, source, source) == spec

    def test_a_name_on_the_hub_does_not_move(self, tmp_path):
        spec = JobSpec(model="a/b", dataset="c", deadline="8h")
        assert relocated(spec, tmp_path / "x", tmp_path) == spec

    def test_an_own_command_keeps_its_folder(self, tmp_path):
        source = tmp_path / "x"
        source.mkdir()
        spec = JobSpec(run="x", deadline="8h")
        assert relocated(spec, source, tmp_path).workdir == "./x"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("WANDB_API_KEY", True), ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True), ("my-private-key", True), ("CREDENTIALS", True), ("apikey", True),
        ("TOKENIZERS_PARALLELISM", False), ("KEYBOARD", False), ("MAX_TOKENS", False),
        ("SECRETARY", False), ("MODEL", False),
    ],
)  # fmt: skip
def test_names_of_secrets_are_recognised(name, secret):
    assert is_secret_name(name) is secret
