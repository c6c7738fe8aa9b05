"""What ``import duetune`` offers answers as the commands do, and shows itself in notebooks."""

from __future__ import annotations

import json

import msgspec
import pytest

import duetune
from duetune.cli import main
from duetune.errors import InvalidInput
from duetune.jobs import submit

JOB = "name: small\nrun: echo done\ndeadline: 6h\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One home for all tests: the model of what was measured is fitted once."""
    return tmp_path_factory.mktemp("api") / "home"


@pytest.fixture(autouse=True)
def home(folder, monkeypatch):
    monkeypatch.setenv("DUETUNE_HOME", str(folder))
    monkeypatch.setattr(submit, "SCENARIOS", 10)
    return folder


def answer(capsys, *words):
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def plain(value):
    return msgspec.json.decode(msgspec.json.encode(value))


def test_fits_is_that_of_the_command(capsys):
    fit = duetune.fits("meta-llama/Llama-3.2-1B", gpu="H100", seq=512, batch=2)
    options = ("--gpu", "H100", "--seq", "512", "--batch", "2")
    assert answer(capsys, "fits", "meta-llama/Llama-3.2-1B", *options)["fits"] == plain(fit)
    assert "fits: yes" in fit._repr_html_()


def test_a_recommendation_is_that_of_the_command(capsys):
    advice = duetune.recommend(model="meta-llama/Llama-3.2-1B", gpus="H100:2", tokens="1M")
    options = ("--model", "meta-llama/Llama-3.2-1B", "--gpus", "H100:2", "--tokens", "1M")
    assert answer(capsys, "recommend", *options)["advice"] == plain(advice)
    assert "x H100" in advice._repr_html_()


def test_a_recommendation_needs_a_model():
    with pytest.raises(InvalidInput, match="model"):
        duetune.recommend()


def test_a_plan_is_that_of_the_command_and_starts_nothing(home, capsys, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    prepared = duetune.plan(path)
    told = answer(capsys, "plan", str(path))
    assert told["plan"] == plain(prepared.plan)
    assert told["policy"] == prepared.policy
    assert "on demand only" in prepared._repr_html_()
    assert duetune.Home(home).fleet is None


def test_a_spec_may_be_a_value():
    spec = duetune.JobSpec(name="small", run="echo done", deadline="6h")
    assert duetune.plan(spec).spec.name == "small"


def test_another_home_may_be_named(tmp_path):
    assert duetune.Home(tmp_path / "other").settings.home == tmp_path / "other"


def test_a_simulation_shows_itself():
    market = duetune.synthetic_market("price_spike", slots=64, seed=1)
    job = duetune.Job(work=6.0, deadline=4, value=40.0, throughput=duetune.linear_throughput(4))
    shown = duetune.simulate_job(job, market, duetune.MaximalSpot(), start=24)._repr_html_()
    assert shown.startswith("<table><caption>maximal_spot: finished in slot")
    assert shown.count("<tr>") > 2
