from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from duetune.errors import InvalidInput
from duetune.interop.measurement_files import take_in
from duetune.jobs.advice_request import Wanted, request
from duetune.jobs.configure import configure
from duetune.jobs.data_check import local_dataset
from duetune.jobs.inventory import parsed_amount, parsed_inventory, parsed_prices
from duetune.jobs.next_run_file import probe_text, write_probe
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.trainer_facts import trainer_software
from duetune.jobs.trainer_knowledge import Packing, TrainerKnowledge
from duetune.knowledge.advisor import Advisor
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.space_files import read_space
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.history import History
from duetune.knowledge.measure.trials import unmeasurable
from duetune.knowledge.model.learned_model import FORMAT, KnowledgeModel
from duetune.knowledge.observation import Observation, RunOutcome
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.knowledge_source import Objective
from duetune.knowledge.sources.learned import KEPT
from duetune.knowledge.text_tables import ImportedRuns
from duetune.registry.sources import (
    FOLDER,
    shipped_history,
    site_history,
    site_source,
)
from duetune.settings import Settings
from duetune.store.store import existing_store, open_store

ONE = Configuration(model="meta-llama/Llama-3.2-1B", gpu_model="H200", batch_size=4)


def spec(tmp_path, rows=100, characters=400, **fields):
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps({"text": characters * "x"}) + "\n") * rows)
    given = {"model": "Qwen/Qwen2.5-7B", "dataset": str(path), "deadline": "8h"}
    return JobSpec.model_validate(given | fields)


def run(batch=4, **fields):
    values = {"outcome": RunOutcome.VALID, "tokens_per_s": 1000.0, "measured_at": 1.0}
    return Observation(configuration=ONE.replace(batch_size=batch), **(values | fields))


def test_what_a_spec_says_is_given_and_the_rest_is_chosen(tmp_path):
    training = {"max_length": 2048, "gradient_checkpointing": True, "bf16": True, "lora_r": 32}
    asked = request(Wanted(), spec(tmp_path, training=training, method="lora"))
    assert asked.given["tokens_per_sample"] == 2048
    assert asked.given["grad_checkpoint"] is True
    assert asked.given["precision"] == "bf16"
    assert asked.given["lora_rank"] == 32
    assert not {"tokens_per_sample", "grad_checkpoint", "precision", "method"} & set(asked.reasons)
    assert asked.reasons["lora_targets"] == "the default layers"
    assert asked.objective is Objective.DEADLINE
    assert asked.limits.deadline_s == 8 * 3600
    assert {"num_gpus", "batch_size", "gpu_model"} <= set(asked.space.free)


def with_data(wanted, job):
    return request(wanted, job, data=local_dataset(job))


def test_the_work_is_that_of_the_dataset(tmp_path):
    training = {"max_length": 512, "num_train_epochs": 2.0, "eval_fraction": 0.1}
    asked = with_data(Wanted(), spec(tmp_path, training=training))
    assert asked.limits.tokens == 90 * 2 * 100
    asked = with_data(Wanted(), spec(tmp_path, characters=10_000, training=training))
    assert asked.limits.tokens == 90 * 2 * 512
    steps = {"max_steps": 10, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}
    asked = with_data(Wanted(seq=256), spec(tmp_path, training=steps))
    assert asked.limits.tokens == 10 * 16 * 256
    assert request(Wanted(tokens="1.5M"), spec(tmp_path)).limits.tokens == 1.5e6


@pytest.mark.parametrize(
    ("model", "method", "gpus", "field", "value"),
    [
        ("llama3.1-70b", "auto", 1, "method", "qlora"),
        ("llama3.1-8b", "full", 1, "precision", "bf16"),
        ("llama3.1-70b", "lora", 8, "gpus_per_member", 4),
    ],
)
def test_what_does_not_fit_is_made_smaller_as_in_plan(tmp_path, model, method, gpus, field, value):
    resources = {"accelerators": f"A100-80GB:{gpus}"}
    job = spec(tmp_path, model=model, method=method, resources=resources)
    site = Site(accelerator="A100-80GB", max_gpus=8, software=trainer_software())
    plan = configure(job, site, 100, model_facts(model))
    assert getattr(plan, field) == value
    asked = request(Wanted(), job, site, 1.0)
    assert f"{plan.reasons[field]}" in "; ".join(asked.assumptions)
    points = list(asked.space.given(asked.given).points())
    assert {each.method for each in points} == {plan.method}
    assert {each.precision for each in points} == {plan.precision}
    assert {each.num_gpus // each.num_nodes for each in points} == {plan.gpus_per_member}
    assert field == "gpus_per_member" or asked.reasons[field] == plan.reasons[field]


def test_memory_is_that_of_the_rows_of_the_job(tmp_path):
    training = {"per_device_train_batch_size": 16, "max_length": 4096}
    job = spec(tmp_path, training=training, resources={"accelerators": "H100:1"})
    data = local_dataset(job)
    site = Site(accelerator="H100", max_gpus=1, software=trainer_software())
    packing = Packing.of(job, data.tokens_per_row)
    trainer = TrainerKnowledge(AnalyticSource(), trainer_software(), packing=packing)
    asked = request(Wanted(), job, site, 1.0, data, lambda: trainer)
    advice = Advisor(trainer, History.empty()).recommend(asked)
    length = data.tokens_per_row
    plan = configure(job, site, data.rows, model_facts(job.model), tokens_per_row=length)
    same = [
        each.estimate.memory_gb.middle
        for each in advice.candidates
        if each.configuration.grad_checkpoint == plan.gradient_checkpointing
    ]
    assert same == [plan.memory_gb]


def test_a_batch_that_is_given_is_kept_on_any_number_of_gpus(tmp_path):
    training = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}
    asked = request(Wanted(gpus="H100:8"), spec(tmp_path, training=training))
    points = list(asked.space.given(asked.given).points())
    assert {each.num_gpus for each in points} == {1, 2, 4, 8}
    assert all(each.batch_size == 2 * each.num_gpus for each in points)
    assert all(each.batch_size * each.grad_accum == 16 for each in points)


def test_a_step_of_so_many_sequences_is_split_as_is_best():
    asked = request(Wanted(model="qwen2.5-7b", batch=24, gpus="H100:2"))
    points = list(asked.space.given(asked.given).points())
    assert all(each.batch_size * each.grad_accum == 24 for each in points)
    assert len({each.batch_size for each in points}) > 3


def test_gpus_come_from_the_options_then_the_spec_then_the_site(tmp_path):
    site = Site(accelerator="L40S", max_gpus=3)
    resources = {"accelerators": "H100:2..4"}
    named = spec(tmp_path, resources=resources)
    assert request(Wanted(gpus="A10G:2"), named, site, 0.7).limits.inventory == {"A10G": 2}
    from_spec = request(Wanted(), named, site, 0.7)
    assert from_spec.limits.inventory == {"H100": 4}
    assert from_spec.space.values["num_gpus"] == (2, 4)
    from_site = request(Wanted(), spec(tmp_path), site, 0.7)
    assert from_site.limits.inventory == {"L40S": 3}
    assert from_site.limits.price == {"L40S": 0.7}
    assert from_site.reasons["gpu_model"] == "the GPUs of the site"
    anything = request(Wanted(), spec(tmp_path))
    assert len(anything.limits.inventory) > 5
    assert any("--gpus" in each for each in anything.assumptions)


def test_more_gpus_than_a_node_has_are_whole_nodes():
    asked = request(Wanted(model="qwen2.5-7b", gpus="H100:32", batch=64, sharding="any"))
    points = list(asked.space.given(asked.given).points())
    assert {(each.num_gpus, each.num_nodes) for each in points} == {
        *((1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4)),
    }


def test_a_job_of_the_built_in_trainer_is_replicated(tmp_path):
    asked = request(Wanted(gpus="H100:4"), spec(tmp_path))
    kinds = {each.sharding.value for each in asked.space.given(asked.given).points()}
    assert kinds == {"none", "ddp"}
    free = request(Wanted(gpus="H100:4", sharding="any"), spec(tmp_path))
    assert "fsdp" in {each.sharding.value for each in free.space.given(free.given).points()}


def test_the_precision_is_one_that_the_gpu_has(tmp_path):
    assert request(Wanted(model="qwen2.5-7b", gpus="T4:1")).given["precision"] == "fp16"
    mixed = request(Wanted(model="qwen2.5-7b", gpus="T4:1,H100:1"))
    for each in mixed.space.given(mixed.given).points():
        assert each.precision.value == ("fp16" if each.gpu_model == "T4" else "bf16")
    wish = spec(tmp_path, training={"bf16": True})
    with pytest.raises(InvalidInput, match="bfloat16"):
        request(Wanted(gpus="T4:1"), wish)
    asked = request(Wanted(gpus="T4:1,H100:1"), wish)
    assert {each.gpu_model for each in asked.space.given(asked.given).points()} == {"H100"}


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"model": "nothing-like-it"}, "model"),
        ({}, "model"),
        ({"model": "qwen2.5-7b", "gpus": "H100:0"}, "gpus"),
        ({"model": "qwen2.5-7b", "gpus": "HX"}, "gpus"),
        ({"model": "qwen2.5-7b", "price": "H100"}, "price"),
        ({"model": "qwen2.5-7b", "tokens": "-3"}, "tokens"),
        ({"model": "qwen2.5-7b", "objective": "cheapest"}, "objective"),
        ({"model": "qwen2.5-7b", "objective": "deadline"}, "deadline"),
        ({"model": "qwen2.5-7b", "method": "magic"}, "method"),
        ({"model": "qwen2.5-7b", "precision": "fp64"}, "precision"),
        ({"model": "qwen2.5-7b", "sharding": "half"}, "sharding"),
        ({"model": "qwen2.5-7b", "seq": 0}, "seq"),
        ({"model": "qwen2.5-7b", "batch": 0}, "batch"),
        ({"model": "qwen2.5-7b", "top": 0}, "top"),
        ({"model": "qwen2.5-7b", "deadline": "soon"}, "deadline"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wanted, field):
    with pytest.raises(InvalidInput) as error:
        request(Wanted(**wanted))
    assert field in str(error.value).split(":")[0]


def test_an_own_command_is_not_advised_on():
    with pytest.raises(InvalidInput, match="built-in trainer"):
        request(Wanted(), JobSpec.model_validate({"deadline": "1h", "run": "true"}))


def test_amounts_inventories_and_prices_as_people_write_them():
    assert parsed_amount("tokens", "2e8") == 2e8
    assert parsed_amount("tokens", "1,000") == 1000
    assert parsed_amount("tokens", "1.5B") == 1.5e9
    assert parsed_inventory("A100-80GB:8, l40s") == {"A100-80GB": 8, "L40S": 8}
    assert parsed_prices("H100=$2.5,L40S=1") == {"H100": 2.5, "L40S": 1.0}


def test_a_probe_is_one_run_that_can_be_measured(tmp_path):
    path = tmp_path / "probe.yaml"
    one = ONE.replace(batch_size=1, tokens_per_microbatch=2048, attention="varlen")
    write_probe(str(path), probe_text(one.replace(software="torch 9")))
    points = list(read_space(path).points())
    assert points == [one]
    assert unmeasurable(points[0]) is None
    with pytest.raises(InvalidInput, match="a file to write"):
        write_probe(str(tmp_path / "no" / "probe.yaml"), "")


def test_what_is_taken_in_is_counted_and_taken_once(tmp_path):
    odd = run(32, tokens_per_s=1e9)
    read = [("a.csv", ImportedRuns(History([run(1), run(2), odd]), ()))]
    with open_store(tmp_path / "db.sqlite") as store:
        (first,) = take_in(store, read)
        assert (first.read, first.new, first.quarantined) == (3, 3, 1)
        assert next(iter(first.quarantine_reasons)) == "implausible"
        again, more = take_in(
            store, [*read, ("b.csv", ImportedRuns(History([run(2), run(4)]), ()))]
        )
        assert (again.new, more.new) == (0, 1)
        assert len(store.observations.history()) == 4
        assert len(site_history(store)) == len(shipped_history()) + 4


def settings(tmp_path):
    home = tmp_path / "home"
    return Settings(home=home, database=str(home / "duetune.db"))


def test_to_ask_makes_no_store(tmp_path):
    where = settings(tmp_path)
    assert existing_store(where) is None
    assert not where.home.exists()


@pytest.fixture(autouse=True)
def _models_of_its_own(monkeypatch):
    """Other tests share the fitted models; here every home has its own."""
    monkeypatch.setattr("duetune.registry.sources.FOLDER", FOLDER)


def test_a_model_is_fitted_once_for_a_history(tmp_path, monkeypatch):
    where, history = settings(tmp_path), History([run(1), run(2)])
    first = site_source(where, history)
    assert [each.name for each in (where.home / FOLDER).iterdir()] == [
        f"{history.snapshot}-{FORMAT}.npz"
    ]
    assert where.home.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(KnowledgeModel, "fit", lambda *_, **__: pytest.fail("fitted again"))
    second = site_source(where, history)
    rows = Configurations.of([ONE.replace(batch_size=size) for size in (1, 3, 64)])
    assert (first.query(rows).tokens_per_s == second.query(rows).tokens_per_s).all()


def test_a_broken_file_is_fitted_anew(tmp_path):
    where, history = settings(tmp_path), History([run(1), run(2)])
    path = where.home / FOLDER / f"{history.snapshot}-{FORMAT}.npz"
    path.parent.mkdir(parents=True)
    for content in (b"", b"nonsense", b"PK\x03\x04"):
        path.write_bytes(content)
        site_source(where, history).query(Configurations.of([ONE]))
        assert KnowledgeModel.load(path).snapshot == history.snapshot


def test_a_foreign_file_is_fitted_anew(tmp_path):
    where, history = settings(tmp_path), History([run(1), run(2)])
    path = where.home / FOLDER / f"{history.snapshot}-{FORMAT}.npz"
    KnowledgeModel.fit(History([run(8)])).save(path)
    site_source(where, history)
    assert KnowledgeModel.load(path).snapshot == history.snapshot


def test_old_models_are_forgotten(tmp_path):
    where = settings(tmp_path)
    for size in range(KEPT + 3):
        site_source(where, History([run(2**size)]))
    assert len(list((where.home / FOLDER).iterdir())) == KEPT


def test_a_home_that_cannot_be_written_to_is_no_hindrance(tmp_path):
    where = settings(tmp_path)
    where.home.parent.joinpath("home").write_text("not a folder")
    source = site_source(where, History([run(1)]))
    assert source.query(Configurations.of([ONE])).p_valid[0] > 0.5
    assert where.home.read_text() == "not a folder"


def test_what_comes_with_duetune_is_plausible_and_of_known_models():
    history = shipped_history()
    assert len(history) >= 600
    # Only what the data card names is set aside.
    assert len(history.quarantined) == 75
    assert all(each.reason.startswith("misdescribed") for each in history.quarantined)
    assert len({each.configuration.model for each in history}) >= 6


def test_two_that_fit_at_once_leave_one_whole_file(tmp_path):
    where, history = settings(tmp_path), History([run(1), run(2)])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: site_source(where, history), range(8)))
    (path,) = (where.home / FOLDER).iterdir()
    assert KnowledgeModel.load(path).snapshot == history.snapshot
