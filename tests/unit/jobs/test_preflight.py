"""A job that would certainly fail never starts paying; softer problems are warnings in the plan."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import duetune
from duetune import wiring
from duetune.cli import main
from duetune.errors import InvalidInput
from duetune.home import Home
from duetune.jobs import disk_space, hub, submit
from duetune.jobs.configure import configure
from duetune.jobs.hub import Access, RepoKind, look_up
from duetune.jobs.preflight import Machine, Severity, hub_repos, preflight
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.training_settings import training_settings, training_task
from duetune.knowledge.facts.model_facts import model_facts
from duetune.training.dataset_rows import SAMPLE, check_dataset

pytest.importorskip("tokenizers")
from support.model_folder import TEMPLATE, model_folder, rows_file

OFFLINE = {"HF_HUB_OFFLINE": "1"}
ROWS = [{"prompt": f"Say {n}.", "completion": f" {n}, as you wish."} for n in range(48)]
CHAT = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 4


class Bench:
    """Checks jobs of a small model on a few rows."""

    def __init__(self, folder):
        self.folder = folder
        self.machine = Machine(folder / "jobs")

    def check(
        self, *, model=None, rows=ROWS, own=True, environ=OFFLINE, checkpoint=None, **training
    ):
        if model is None:
            model = model_folder(self.folder / "model")
        dataset = rows if isinstance(rows, str) else rows_file(self.folder / "rows.jsonl", rows)
        fields = {"model": str(model), "dataset": str(dataset), "deadline": "8h"}
        spec = JobSpec(
            **fields,
            training={"max_steps": 5, "max_length": 64} | training,
            **({"checkpoint": checkpoint} if checkpoint else {}),
        )
        facts = model_facts(str(model))
        plan = configure(spec, Site(), None, facts)
        summary = None if isinstance(rows, str) else check_dataset(dataset)
        machine = Machine(self.machine.jobs, own=own)
        task, repos = training_task(spec, plan), hub_repos(spec, environ)
        return preflight(spec, plan, task, facts, summary, repos, machine, environ)

    def refused(self, **job):
        with pytest.raises(InvalidInput) as error:
            self.check(**job).refuse()
        return str(error.value)

    def warnings(self, **job):
        found = self.check(**job)
        found.refuse()
        return [str(each) for each in found.findings if each.severity is Severity.WARNING]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_nothing_is_wrong_with_a_good_job(bench):
    found = bench.check()
    assert found.findings == ()
    assert (found.data.rows, found.data.sampled, found.data.cut, found.data.dropped) == (
        48,
        48,
        0,
        0,
    )
    # "Say 9." and " 9, as you wish." of one byte each, and the end of the text.
    assert found.data.longest == len("Say 10.") + len(" 10, as you wish.") + 1


def test_evaluations_without_rows_are_refused(bench):
    said = bench.refused(eval_strategy="epoch", eval_fraction=0.0)
    assert "training.eval_strategy" in said
    assert "set eval_fraction above 0 or eval_dataset" in said


def test_trackers_that_would_get_nothing_are_named(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = model_folder(tmp_path / "model")
    (said,) = bench.warnings(model=model, report_to="wandb")
    assert "list WANDB_API_KEY under secrets" in said
    offline = OFFLINE | {"WANDB_MODE": "offline"}
    assert bench.warnings(model=model, report_to="wandb", environ=offline) == []
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mlflow" else found(name)
    )
    assert "pip install 'duetune[track]'" in bench.refused(model=model, report_to=["mlflow"])
    assert bench.warnings(model=model, report_to=["mlflow"], own=False) == []


def test_rows_that_are_cut_or_dropped_are_counted_with_the_reason(bench):
    long = [{"prompt": "p" * 70, "completion": "c"}, {"prompt": "p", "completion": "c" * 70}]
    dropped, cut = bench.warnings(rows=[*ROWS, *long])
    assert dropped.startswith(
        "training.max_length: 64: 1 of 50 rows are dropped: they have no token"
    )
    assert cut.startswith("training.max_length: 64: 1 of 50 rows are cut, because they are longer")
    assert "the longest row has 72 tokens" in cut


def test_a_dataset_of_which_no_row_is_left_is_refused(bench):
    words = bench.refused(rows=[{"prompt": "p" * 70, "completion": "c"}] * 3)
    allowed = "expected a larger number: no row has"
    assert words.startswith(f"training.max_length: '64' is not allowed; {allowed}")


def test_a_large_dataset_is_sampled_evenly(bench):
    many = [{"text": "t" * (80 if n % 2 else 8)} for n in range(5 * SAMPLE)]
    data = bench.check(rows=many).data
    assert data.rows == 5 * SAMPLE
    assert SAMPLE <= data.sampled < 2 * SAMPLE


def test_lengths_are_estimated_where_the_tokenizer_is_not_here(bench):
    (words,) = bench.warnings(model="org/a-1b", rows=[{"text": "t" * 4000}], own=False)[1:]
    assert "the longest row has 1,000 tokens, estimated from their characters" in words


@pytest.mark.parametrize(("family", "refused"), [("gpt2", True), ("llama", False)])
def test_rows_longer_than_the_positions_of_the_model(bench, family, refused):
    model = model_folder(bench.folder / "model", model_type=family, max_position_embeddings=40)
    rows = [{"text": "t" * 60}]
    if refused:
        assert "expected at most 40, the positions of the model" in bench.refused(
            model=model, rows=rows
        )
    else:
        (words,) = bench.warnings(model=model, rows=rows)
        assert words.startswith("training.max_length: 64: more than the 40 positions of the model")


def test_messages_want_a_chat_template(bench):
    (words,) = bench.warnings(rows=CHAT)
    assert "no chat template: messages are written as '### role'" in words


def test_a_named_chat_template_needs_no_warning(bench):
    found = bench.check(rows=CHAT, chat_template="chatml")
    assert not any("chat template" in str(each) for each in found.findings)


def test_rows_of_alpaca_are_said_to_have_their_usual_form(bench):
    rows = [{"instruction": "Say", "output": "yes"}] * 4
    words = " ".join(map(str, bench.check(rows=rows, max_length=250).findings))
    assert "no chat template: rows are written in the usual form of Alpaca" in words


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"load_in_4bit": True}, "method"), ({"optim": "adamw_8bit"}, "optim")],
)
def test_a_missing_library_for_fewer_bits_is_refused(bench, monkeypatch, fields, field):
    assert not bench.check(**fields).findings
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else real(name)
    )
    (found,) = bench.check(model=bench.folder / "model", **fields).findings
    assert (found.severity, found.field) == (Severity.REFUSED, field)
    assert "duetune[quantised]" in found.says


def test_messages_are_counted_as_the_chat_template_writes_them(bench):
    pytest.importorskip("transformers")
    model = model_folder(bench.folder / "model", template=TEMPLATE)
    found = bench.check(model=model, rows=CHAT)
    assert found.findings == ()
    assert found.data.longest == len("<user>a<assistant>b")


def test_messages_that_the_chat_template_refuses_are_refused(bench):
    pytest.importorskip("transformers")
    strict = "{{ raise_exception('no system') }}"
    model = model_folder(bench.folder / "model", template=strict)
    words = bench.refused(model=model, rows=CHAT)
    assert words.startswith("dataset: ")
    assert "no system" in words


def test_a_model_without_a_tokenizer_is_refused(bench):
    model = model_folder(bench.folder / "model", tokenizer=False)
    assert "expected a folder with a tokenizer" in bench.refused(model=model)


def test_layers_that_the_weights_name_are_found_without_torch(bench, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert bench.check(lora_target_modules=["q_proj", "v_proj"]).findings == ()
    shutil.rmtree(bench.folder / "model")
    assert bench.check(lora_target_modules=r".*self_attn\.[qv]_proj").findings == ()


@pytest.mark.torch
def test_layers_that_the_model_does_not_have_are_refused(bench):
    pytest.importorskip("peft")
    words = bench.refused(lora_target_modules=["query", "value"])
    assert words.startswith(
        "training.lora_target_modules: 'query, value' is not allowed; expected "
    )
    assert "it has k_proj, o_proj, q_proj, v_proj" in words
    shutil.rmtree(bench.folder / "model")
    (words,) = bench.warnings(lora_target_modules=["q_proj", "value"])
    assert words == "training.lora_target_modules: value: no layer of the model has this name"


@pytest.mark.parametrize(("free", "refused"), [(1000, True), (1_000_000, False)])
def test_the_disk_must_have_room(bench, monkeypatch, free, refused):
    usage = shutil.disk_usage(bench.folder)._replace(free=free)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: usage)
    job = {"checkpoint": {"keep": 50}}
    words = bench.refused(**job) if refused else bench.warnings(**job)[0]
    assert words.startswith("disk space: ")
    assert f"on the disk of {bench.folder}, {'1 kB' if refused else '1 MB'} are free" in words


class TestHub:
    def test_offline_is_refused_at_once_on_the_own_machine(self, bench, monkeypatch):
        monkeypatch.setattr(hub, "_Asking", None)  # nothing may be asked
        words = bench.refused(model="org/a-1b")
        assert words == (
            "model: 'org/a-1b' is not allowed; expected a folder, or a name on the Hugging Face "
            "hub that can be fetched; it is not in the local cache, and HF_HUB_OFFLINE is set"
        )
        assert "'duetune plan' lists " in bench.refused(model="org/a-1b", rows="org/rows")

    def test_a_dataset_on_the_hub_needs_its_library(self, bench, monkeypatch):
        real = importlib.util.find_spec
        absent = lambda name: None if name == "datasets" else real(name)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", absent)
        assert any(
            "'datasets' is not installed" in str(each)
            for each in bench.check(rows="org/rows").findings
        )

    def test_another_fleet_may_reach_what_this_machine_does_not(self, bench):
        model, data = bench.warnings(model="org/a-1b", rows="org/rows", own=False)
        assert model.startswith("model: org/a-1b: it is not in the local cache")
        assert data.startswith("dataset: org/rows: it is not in the local cache")

    def test_what_is_in_the_cache_is_used(self, bench):
        place = bench.folder / "hub" / "models--org--a-1b"
        model_folder(place / "snapshots" / "abc", max_position_embeddings=40)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("abc")
        environ = OFFLINE | {"HF_HUB_CACHE": str(bench.folder / "hub")}
        found = bench.check(model="org/a-1b", environ=environ)
        assert found.findings == ()
        assert found.data.exact
        model_file = place / "snapshots" / "abc" / "model.safetensors"
        model_file.unlink()  # only the configuration was fetched
        assert "HF_HUB_OFFLINE is set" in bench.refused(model="org/a-1b", environ=environ)

    @pytest.mark.parametrize(
        ("status", "code", "access"),
        [
            (200, "", Access.REACHABLE),
            (401, "RepoNotFound", Access.MISSING),
            (403, "GatedRepo", Access.GATED),
            (500, "", Access.UNREACHABLE),
        ],
    )
    def test_the_hub_is_asked(self, tmp_path, status, code, access):
        with Answering(status, code) as address:
            environ = {"HF_ENDPOINT": address, "HF_HUB_CACHE": str(tmp_path), "HF_TOKEN": "t"}
            model, data = look_up(
                [(RepoKind.MODEL, "org/a"), (RepoKind.DATASET, "org/rows")], environ
            )
        assert (model.access, data.access) == (access, access)
        assert data.rows == (7 if access is Access.REACHABLE else None)

    def test_a_hub_that_does_not_answer_costs_no_more_than_the_time_out(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(hub, "TIMEOUT_S", 0.05)
        with Answering(200, "", silent=True) as address:
            environ = {"HF_ENDPOINT": address, "HF_HUB_CACHE": str(tmp_path)}
            (model,) = look_up([(RepoKind.MODEL, "org/a")], environ)
        assert model.access is Access.UNREACHABLE


class Answering:
    """A hub that gives the same answer to every question, or none until it is left."""

    def __init__(self, status, code, *, silent=False):
        pytest.importorskip("huggingface_hub")
        over = self.over = threading.Event()
        card = {"dataset_info": {"splits": [{"name": "train", "num_examples": 7}]}}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if silent:
                    over.wait()
                    return
                body = json.dumps({"id": "org/a", "cardData": card}).encode()
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def test_every_setting_is_shown_with_where_it_comes_from():
    training = {"learning_rate": 1e-3, "max_steps": 5, "warmup_ratio": 0.1}
    spec = JobSpec(model="a/b-1b", dataset="c/d", deadline="8h", training=training)
    plan = configure(spec, Site(), None, model_facts("a/b-1b"))
    task = training_task(spec, plan)
    found = {each.name: each for each in training_settings(spec, plan, task, 40)}
    assert (found["learning_rate"].value, found["learning_rate"].origin) == (1e-3, "given")
    assert (found["lora_r"].value, found["lora_r"].origin) == (16, "the default rank")
    assert found["weight_decay"].origin == "the trainer's default"
    assert found["warmup_ratio"].value == 0.1
    assert found["eval_fraction"].origin == "the trainer's default; 40 rows, at most 256"
    for name in ("method", "precision", "lora_alpha", "max_length", "lr_scheduler_type"):
        assert found[name].origin


class TestCommands:
    @pytest.fixture(autouse=True)
    def _home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(submit, "SCENARIOS", 10)
        model_folder(tmp_path / "model")
        rows_file(tmp_path / "rows.jsonl", ROWS)

    def test_launch_refuses_what_plan_shows(self, tmp_path, capsys):
        path = tmp_path / "job.yaml"
        path.write_text(
            "model: org/never-1b\ndataset: rows.jsonl\ndeadline: 8h\ntraining: {max_steps: 5}\n"
        )
        assert main(["plan", str(path), "--json"]) == 2
        told = json.loads(capsys.readouterr().out)
        assert [each["severity"] for each in told["preflight"]["findings"]] == ["refused"]
        assert {"name": "lora_r", "value": 16, "origin": "the default rank"} in told["settings"]
        assert main(["plan", str(path)]) == 2
        assert "Would fail: model: org/never-1b" in capsys.readouterr().out
        assert main(["launch", str(path), "--yes"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("duetune: model: 'org/never-1b' is not allowed; expected")
        assert said.err.count("\n") == 1
        with pytest.raises(InvalidInput, match="HF_HUB_OFFLINE"):
            duetune.launch(path)
        assert duetune.Home().fleet is None

    def test_an_own_command_says_what_it_is_not_told(self, tmp_path, capsys):
        (tmp_path / "notes.txt").write_text("not a dataset of ours")
        path = tmp_path / "job.yaml"
        path.write_text(
            "model: ./model\ndataset: notes.txt\nrun: echo x\ndeadline: 8h\n"
            "checkpoint: {every: 10m}\n"
        )
        assert main(["plan", str(path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["preflight"]["findings"]
        assert [each["field"] for each in found] == ["model", "dataset", "checkpoint.every"]
        assert all(each["says"].startswith("ignored: ") for each in found)

    def test_an_own_command_may_have_several_gpus_of_one_node(self, tmp_path, capsys):
        path = tmp_path / "job.yaml"
        path.write_text("run: echo x\ndeadline: 8h\nresources: {accelerators: 'auto:4'}\n")
        assert main(["plan", str(path)]) == 0
        assert "1 member of 4 GPUs" in capsys.readouterr().out

    def test_an_imported_job_passes_plan(self, tmp_path, capsys):
        """Its list of datasets is beside the file, and its rows are in the form of Alpaca."""
        info = {"mine": {"file_name": "alpaca.json", "num_samples": 9}}
        (tmp_path / "dataset_info.json").write_text(json.dumps(info))
        rows = [{"instruction": f"Say {n}", "input": "", "output": f"{n}"} for n in range(20)]
        (tmp_path / "alpaca.json").write_text(json.dumps(rows))
        (tmp_path / "sft.yaml").write_text(
            "model_name_or_path: ./model\nstage: sft\ndataset: mine\ncutoff_len: 256\n"
        )
        job = str(tmp_path / "job.yaml")
        assert main(["import", str(tmp_path / "sft.yaml"), "-o", job, "--deadline", "8h"]) == 0
        assert "num_samples is not imported" in (tmp_path / "job.yaml").read_text()
        assert main(["plan", job]) == 0
        assert "Would fail" not in capsys.readouterr().out


def test_a_fleet_elsewhere_needs_nothing_of_this_machine(tmp_path, monkeypatch):
    """Neither its files, nor its packages, nor its GPUs."""
    (tmp_path / "config.toml").write_text('[site]\naccelerator = "H100"\nmax_gpus = 4\n')
    (tmp_path / "job.yaml").write_text(
        "model: /models/llama3.1-8b\ndataset: /data/rows.jsonl\ndeadline: 8h\nmethod: qlora\n"
        "checkpoint: {dir: /scratch/job}\n"
        "training: {max_steps: 100, eval_dataset: /data/held.jsonl, report_to: [wandb]}\n"
    )

    def never(*_, **__):
        raise AssertionError

    home = Home(tmp_path)
    with pytest.raises(InvalidInput, match="no such file"):
        home.plan(tmp_path / "job.yaml")
    monkeypatch.setattr(wiring, "runs_here", lambda _: False)
    monkeypatch.setattr(subprocess, "Popen", never)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "disk_usage", never)
    monkeypatch.setattr(submit, "SCENARIOS", 20)
    prepared = home.plan(tmp_path / "job.yaml")
    assert prepared.plan.accelerator == "H100"
    assert prepared.plan.parameters > 7e9
    assert [str(each) for each in prepared.preflight.findings] == [
        f"{field}: {place}: not checked: it is not on this machine"
        for field, place in (
            ("model", "/models/llama3.1-8b"),
            ("dataset", "/data/rows.jsonl"),
            ("training.eval_dataset", "/data/held.jsonl"),
        )
    ]
    assert prepared.preflight.findings[0].severity is Severity.WARNING
    home.require_training(prepared.spec)
