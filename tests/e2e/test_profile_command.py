"""``duetune profile`` through its whole stack: real steps of a tiny model on the CPU."""

from __future__ import annotations

import json

import pytest

from duetune.cli import main
from duetune.knowledge.measure import preparation
from duetune.knowledge.measure.campaign_file import read_observations
from duetune.knowledge.observation import RunOutcome

pytestmark = pytest.mark.live

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
SPACE = """
fields:
  model: {values: [MODEL]}
  method: {values: [full, lora]}
  tokens_per_microbatch: {values: [16, 32]}
  tokens_per_sample: {values: [16]}
  attention: {values: [varlen, flash]}
constraints:
  - {expression: tokens_per_microbatch == 16 or attention == "varlen", meaning: few of them}
"""


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DUETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DUETUNE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def space(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.replace("MODEL", str(folder)))
    return str(path)


@pytest.fixture
def duetune(capsys):
    def call(*arguments):
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def refused(duetune):
    def call(*arguments):
        status, out, err = duetune("profile", *arguments)
        assert status == 2, err
        assert out == ""
        assert err.startswith("duetune: ")
        assert err.count("\n") == 1
        return err

    return call


@pytest.mark.more
def test_a_campaign_is_measured_and_goes_on_without_repeating_itself(duetune, space, tmp_path):
    out = tmp_path / "rows.jsonl"
    arguments = ("profile", space, "--out", str(out), "--device", "cpu", "--json")
    status, text, err = duetune(*arguments, "--count", "3")
    assert status == 0, err
    answer = json.loads(text)
    assert (answer["done"], answer["valid"], answer["before"]) == (3, 3, 0)
    first = out.read_bytes()
    status, text, err = duetune(*arguments, "--count", "1", "--mode", "random")
    assert status == 0, err
    answer = json.loads(text)
    assert (answer["done"], answer["before"]) == (1, 3)
    assert out.read_bytes().startswith(first)
    rows = read_observations(out)
    assert len({each.configuration.key for each in rows}) == 4, "flash cannot be run here"
    assert {each.outcome for each in rows} == {RunOutcome.VALID}
    assert all(each.tokens_per_s > 0 and each.steps >= 3 for each in rows)
    assert {each.configuration.gpu_model for each in rows} == {"cpu"}
    assert all("torch" in each.configuration.software for each in rows)
    # Nothing is left: no worker is even started.
    status, text, err = duetune("profile", space, "--out", str(out), "--device", "cpu", "--count=9")
    assert status == 0, err
    assert text == f"0 configurations on cpu: 0 valid, 0 out of memory, 0 failed; 4 in {out}.\n"


def test_a_plan_runs_nothing(duetune, space, tmp_path):
    arguments = ("profile", space, "--device", "cpu", "--plan")
    status, text, _ = duetune(*arguments)
    assert status == 0
    assert text.startswith("6 configurations of 1 models on cpu (duetune ")
    assert "Skipped, about 2: our trainer does not use flash attention." in text
    assert "About 4 would run" in text
    status, text, _ = duetune(*arguments, "--json")
    assert json.loads(text)["expected_count"] == 4
    assert not list(tmp_path.glob("*.jsonl*"))


def test_without_a_gpu_it_says_so(refused, monkeypatch):
    monkeypatch.setattr(preparation.shutil, "which", lambda _: None)
    assert "no NVIDIA GPU was found" in refused("quick", "--minutes=1", "--plan")


def test_bad_input_is_refused_in_one_line(refused, space, tmp_path):
    cpu = ("--device", "cpu")
    assert "--out FILE" in refused(space, "--count=1", *cpu)
    assert "a campaign must end" in refused(space, "--out=x.jsonl", *cpu)
    assert "h200, quick" in refused("nothing", "--out=x.jsonl", "--count=1", *cpu)
    assert "readable file" in refused("no/where.yaml", "--out=x.jsonl", "--count=1", *cpu)
    assert "active, random" in refused(space, "--out=x.jsonl", "--count=1", "--mode=best", *cpu)
    assert "readable file" in refused(
        space, "--out=x.jsonl", "--count=1", "--history=none.jsonl", *cpu
    )
    (tmp_path / "there.jsonl").write_text("")
    assert "--no-resume" in refused(space, "--out=there.jsonl", "--count=1", "--no-resume", *cpu)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert "line 1" in refused(space, "--out=bad.jsonl", "--count=1", *cpu)
    assert not (tmp_path / "x.jsonl").exists()
