"""From what a user asks for to a campaign: models, spaces, GPUs, plans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.configurations.space_sampling import sample
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.measure import preparation
from duetune.knowledge.measure.preparation import (
    CampaignRequest,
    NoGpu,
    PreparedCampaign,
    campaign_space,
    found_gpu,
)
from duetune.knowledge.measure.trials import model_config, read_batch, unmeasurable, write_batch
from duetune.knowledge.measure.worker_messages import Header, Timing, Trial
from support.later import later

torch = later("torch")
transformers = later("transformers")

H200 = ("h200", "H200", "torch 2")


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(
        preparation, "found_gpu", lambda device: "H200" if device == "cuda" else device
    )


def test_the_campaign_for_an_h200_is_large_and_can_be_measured():
    space = campaign_space(*H200)
    assert space.cardinality > 30_000
    rows = list(sample(space, 500, np.random.default_rng(0)))
    reasons = {unmeasurable(each) for each in rows} - {None}
    assert reasons <= {"liger-kernel is not installed", "bitsandbytes is not installed"}
    varying = [
        field
        for field in Configuration.__struct_fields__
        if len({getattr(each, field) for each in rows}) > 1
    ]
    assert len(varying) >= 7
    assert {each.software for each in rows} == {"torch 2"}
    sizes = [model_facts(str(model)).parameters for model in space.values["model"]]
    assert len(sizes) >= 6
    assert min(sizes) < 0.2e9
    assert max(sizes) > 30e9
    for each in rows:
        assert each.tokens_per_microbatch * each.grad_accum <= 65536
        assert each.method != "full" or (each.lora_rank, each.lora_targets) == (8, "attention")
    large = [each.tokens_per_microbatch * each.grad_accum >= 16384 for each in rows]
    assert np.mean(large) > 0.8


@pytest.mark.torch
@pytest.mark.parametrize("model", campaign_space(*H200).values["model"])
def test_a_model_built_from_the_registry_has_the_parameters_it_is_known_for(model):
    values = model_config(str(model))
    config = transformers.AutoConfig.for_model(str(values.pop("model_type")), **values)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(each.numel() for each in built.parameters())
    assert model_facts(str(model)).parameters == pytest.approx(counted, rel=0.002)


def test_a_window_that_nobody_mentioned_is_not_there():
    assert model_config("mistralai/Mistral-7B-v0.3")["sliding_window"] is None


def test_a_model_may_be_a_folder_or_a_file(tmp_path):
    config = {"model_type": "llama", "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_config(str(tmp_path)) == config
    assert model_config(str(tmp_path / "config.json")) == config


@pytest.mark.parametrize(
    ("text", "match"), [("{", "configuration of a model"), ('{"a": 1}', "model_type")]
)
def test_a_file_that_is_no_model_is_refused(tmp_path, text, match):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match=match):
        model_config(str(tmp_path))


def test_an_unknown_model_is_refused_before_anything_runs(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("fields:\n  model: {values: [nobody/knows]}\n")
    with pytest.raises(InvalidInput, match="nobody/knows"):
        campaign_space(str(path), "H200", "torch 2")


def test_a_space_takes_the_gpu_that_is_there_unless_it_names_another():
    assert campaign_space("quick", "L40S", "torch 2").values["gpu_model"] == ("L40S",)
    with pytest.raises(InvalidInput, match="L40S, the GPU of this machine"):
        campaign_space("h200", "L40S", "torch 2")
    with pytest.raises(InvalidInput, match="h200, quick"):
        campaign_space("h100", "L40S", "torch 2")


def test_without_a_gpu_the_user_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(preparation.shutil, "which", lambda _: None)
    with pytest.raises(NoGpu, match="--device cpu"):
        found_gpu("cuda")
    assert found_gpu("cpu") == "cpu"


def test_the_gpu_goes_by_the_name_it_has_here(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert found_gpu("cuda") == "H200"


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "greedy"},
        {"device": "tpu"},
        {"minutes": -1.0},
        {"minutes": float("nan")},
        {"count": 0},
        {"minutes": None},
        {"most_s": 0.0},
        {"repeat_share": 1.0},
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(tmp_path, changes):
    values = {"space": "quick", "out": tmp_path / "x", "minutes": 1.0, "device": "cpu", **changes}
    with pytest.raises(InvalidInput):
        PreparedCampaign(CampaignRequest(**values))


@pytest.mark.usefixtures("gpu")
def test_a_plan_says_how_many_configurations_fit_into_the_time(tmp_path):
    plans = [
        PreparedCampaign(CampaignRequest(space="h200", out=tmp_path / "x", minutes=minutes)).plan()
        for minutes in (5.0, 10.0)
    ]
    short, long = plans
    assert 50 < short.expected_count < long.expected_count < 2000
    assert short.expected_s <= 300
    assert long.expected_count == pytest.approx(2 * short.expected_count, rel=0.1)
    assert any("more than 8 s" in reason for reason in short.left_out)
    assert not (tmp_path / "x").exists()


def test_a_batch_is_read_as_it_was_written(tmp_path):
    rows = (
        Configuration(model="Qwen/Qwen2.5-0.5B", gpu_model="H200", precision="bf16-mixed"),
        Configuration(model="Qwen/Qwen2.5-0.5B", gpu_model="H200", tokens_per_microbatch=4096),
    )
    path = tmp_path / "batch.jsonl"
    write_batch(path, rows, device="cuda", seed=3, timing=Timing())
    assert read_batch(path) == rows
    first, _, packed = path.read_text().splitlines()
    assert Header.read(first).config["model_type"] == "qwen2"
    assert Trial.read(packed).tokens_per_microbatch == 4096


def test_a_worker_and_the_campaign_need_few_packages():
    """They run where duetune's other dependencies are not installed."""
    code = (
        "import sys; import {module};"
        "print(sorted({{name.split('.')[0] for name in sys.modules}} & {heavy}))"
    )
    heavy = {"numba", "click", "rich", "sqlalchemy", "pydantic", "sklearn", "scipy", "polars"}
    modules = ("training.profiler.measuring_worker", "knowledge.measure.campaign_main")
    for module in modules:
        command = [
            sys.executable,
            "-c",
            code.format(module=f"duetune.{module}", heavy={*heavy, "torch"}),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "[]", (module, done.stderr)


@pytest.mark.torch
def test_the_trainers_step_needs_no_package_besides_those_of_training():
    before = {"torch", "transformers", "peft", "numpy", "msgspec", "bitsandbytes", "liger_kernel"}
    allowed = {*before, "duetune", *sys.stdlib_module_names}
    folder = Path(preparation.__file__).parents[2] / "training" / "profiler"
    for path in folder.glob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1].split(".")[0] in allowed, (path, line)
