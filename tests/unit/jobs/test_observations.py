from __future__ import annotations

import msgspec
import pytest

from duetune.core.decision import Allocation
from duetune.core.events import Ended, Observed, Recorded, Reported, Status
from duetune.core.market import Slot
from duetune.core.progress import Phase, Progress
from duetune.jobs.configure import configure
from duetune.jobs.measured_runs import (
    measured_paces,
    ran_out_of_memory,
    record_observations,
)
from duetune.jobs.question import Question
from duetune.jobs.site import Site
from duetune.jobs.spec.job_spec import JobSpec
from duetune.jobs.step_time import Basis
from duetune.jobs.trainer_knowledge import packed_rows
from duetune.knowledge.configurations.configuration import (
    Configurations,
    Interconnect,
    Method,
    Precision,
    Sharding,
)
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.history import History
from duetune.knowledge.measure.worker_messages import installed_software
from duetune.knowledge.model.quality import ASSUMED_LENGTH
from duetune.knowledge.observation import Origin, RunOutcome
from duetune.knowledge.sources.past_runs import HistorySource
from duetune.settings import SiteSettings
from duetune.store.store import open_store
from duetune.testing.sample_events import submission
from duetune.training.task import TrainingMethod, TrainingTask, write_task

SITE = SiteSettings(accelerator="A100-80GB", speed=60.0)
TASK = TrainingTask(
    model="meta-llama/Llama-3.2-3B-Instruct",
    dataset="data.jsonl",
    per_device_train_batch_size=2,
    global_batch=8,
    max_length=512,
    bf16=True,
)
DONE = Progress(step=20, total_steps=20, world=3, tokens=40_000, phase=Phase.FINISHED, at=1.7e9)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "duetune.db") as opened:
        yield opened


def lived(folder, *, task=TASK, progress=DONE, pace=None):
    """The journal of a job that was measured with one and with three GPUs: 60 and 120 steps per
    slot of 1800 market seconds, which are 30 on the wall.
    """
    folder.mkdir(exist_ok=True)
    if task is not None:
        write_task(folder, task)
    first = submission()
    first = msgspec.structs.replace(
        first, task=msgspec.structs.replace(first.task, folder=str(folder))
    )
    events = (
        first,
        Observed(
            at=first.at + 1,
            slot=1,
            progress=0.0,
            held=Allocation(),
            market=Slot(spot_price=0.3, available=6, on_demand_price=1.0),
            forecast_price=(),
            forecast_available=(),
            spent=0.0,
            pace={1: 60.0, 3: 120.0} if pace is None else pace,
        ),
        Reported(at=first.at + 2, progress=progress, progress_at=first.at + 2),
        Ended(
            at=first.at + 3,
            status=Status.SUCCEEDED if progress.phase is Phase.FINISHED else Status.FAILED,
            reason=progress.message or "finished",
            cost=1.0,
        ),
    )
    return [Recorded(number, event) for number, event in enumerate(events, start=1)]


def test_a_job_is_recorded_at_each_number_of_gpus(store, tmp_path):
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job"))
    one, three = sorted(store.observations.history(), key=lambda it: it.configuration.num_gpus)
    told = three.configuration
    assert (told.model, told.gpu_model) == ("meta-llama/Llama-3.2-3B", "A100-80GB")
    assert (told.method, told.precision) == (Method.LORA, Precision.BF16)
    assert (told.lora_rank, told.lora_targets) == (16, "all-linear")
    # Four microbatches of two: two rounds of three GPUs, four of one. Rows are packed.
    assert (told.num_gpus, told.num_nodes, told.batch_size, told.grad_accum) == (3, 3, 3, 2)
    assert told.tokens_per_microbatch == TASK.microbatch_tokens
    assert told.tokens_per_sample <= (told.longest_sample or TASK.max_length)
    assert (told.sharding, told.interconnect) == (Sharding.DDP, Interconnect.TCP)
    assert told.software == installed_software()
    # Four steps a second of 2,000 tokens.
    assert three.tokens_per_s == pytest.approx(8000)
    assert three.step_s == pytest.approx(0.125)
    assert (three.origin, three.provenance) == (Origin.PRODUCTION, "job tuning-1")
    assert three.measured_at == 1.7e9
    assert one.configuration.grad_accum == 4
    assert one.configuration.sharding is Sharding.NONE
    assert one.tokens_per_s == pytest.approx(4000)


def test_a_job_that_ended_in_its_first_slot_is_recorded_by_its_last_report(store, tmp_path):
    done = msgspec.structs.replace(DONE, step_s=0.5)
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", progress=done, pace={}))
    (three,) = store.observations.history()
    assert three.configuration.num_gpus == 3
    assert three.tokens_per_s == pytest.approx(4000)


def test_a_job_is_recorded_once(store, tmp_path):
    story = lived(tmp_path / "job")
    record_observations(store, SITE, "tuning-1", story)
    record_observations(store, SITE, "tuning-1", story)
    record_observations(store, SITE, "tuning-2", story)
    assert len(store.observations.history()) == 4


def test_own_commands_are_not_recorded(store, tmp_path):
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", task=None))
    assert len(store.observations.history()) == 0


@pytest.mark.parametrize(
    ("site", "task", "gpu"),
    [
        (SITE, msgspec.structs.replace(TASK, emulated_microbatch_s=0.1), "emulated"),
        (SiteSettings(), TASK, "CPU"),
    ],
)
def test_what_is_no_gpu_is_told_as_such(store, tmp_path, site, task, gpu):
    record_observations(store, site, "tuning-1", lived(tmp_path / "job", task=task))
    assert {each.configuration.gpu_model for each in store.observations.history()} == {gpu}


def test_a_smaller_memory_than_the_gpu_has_is_a_cap(store, tmp_path):
    site = msgspec.structs.replace(SITE, memory_gb=24.0)
    record_observations(store, site, "tuning-1", lived(tmp_path / "job"))
    assert store.observations.history()[0].configuration.memory_cap_gb == 24


def test_without_counted_tokens_the_length_is_assumed(store, tmp_path):
    silent = msgspec.structs.replace(DONE, tokens=0)
    story = lived(tmp_path / "job", progress=silent, pace={1: 60.0})
    record_observations(store, SITE, "tuning-1", story)
    (seen,) = store.observations.history()
    assert seen.flags == (ASSUMED_LENGTH,)
    # Two steps a second of eight rows.
    assert seen.tokens_per_s == pytest.approx(2 * 8 * 512)


def test_a_job_that_ran_out_of_memory_teaches_that(store, tmp_path):
    failed = Progress(
        world=2,
        phase=Phase.FAILED,
        message="per_device_train_batch_size: 2 is not allowed; expected fewer rows or a shorter "
        "max_length: out of memory (CUDA out of memory)",
        out_of_memory=True,
        at=1.7e9,
    )
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", progress=failed, pace={}))
    (seen,) = store.observations.history()
    assert seen.outcome is RunOutcome.OOM
    assert seen.configuration.num_gpus == 2
    assert "out of memory" in seen.error


@pytest.mark.parametrize("message", ["dataset: bad", "no file 'out of memory.jsonl'"])
def test_another_failure_teaches_nothing(store, tmp_path, message):
    failed = Progress(phase=Phase.FAILED, message=message, at=1.7e9)
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", progress=failed, pace={}))
    assert len(store.observations.history()) == 0


def spec_of(model):
    return JobSpec(model=model, dataset="data.jsonl", deadline="1h")


def test_paces_come_back_as_they_were_measured(store, tmp_path):
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job"))
    wanted = spec_of("meta-llama/Llama-3.2-3B-Instruct")
    one, three = sorted(
        measured_paces(store.observations.history(), wanted), key=lambda pace: pace.gpus
    )
    assert (three.subject, three.accelerator) == (wanted.model, "A100-80GB")
    assert (three.gpus, three.method, three.max_length) == (3, "lora", 512)
    # Of the whole step, which is four microbatches over all GPUs together.
    assert three.step_s == pytest.approx(0.25)
    assert (three.microbatch, three.accumulation) == (2, 4)
    assert (one.step_s, one.accumulation) == (pytest.approx(0.5), 4)


def test_the_rows_of_a_step_are_a_field_and_not_words(store, tmp_path):
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", pace={3: 120.0}))
    (seen,) = store.observations.history()
    assert seen.step_rows == 8
    reworded = msgspec.structs.replace(seen, protocol="as measured in production")
    (pace,) = measured_paces([reworded], spec_of(TASK.model))
    # Eight rows, not the twelve that three GPUs could take in two rounds of two.
    assert pace.accumulation == 4


def test_paces_are_those_of_jobs_and_of_the_same_model(store, tmp_path):
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job"))
    history = store.observations.history()
    assert measured_paces(history, spec_of("other/model")) == ()
    foreign = History(msgspec.structs.replace(each, origin=Origin.IMPORT) for each in history)
    assert measured_paces(foreign, spec_of("llama3.2-3b")) == ()


def planned_again(history, **training):
    """The plan of a job like ``TASK``, by physics and what jobs have shown."""
    spec = JobSpec.model_validate(
        {"model": TASK.model, "dataset": "org/data", "deadline": "8h", "training": training}
    )
    site = Site.of(SITE, installed_software())
    facts = model_facts(TASK.model)
    paces, out = measured_paces(history, spec), ran_out_of_memory(history)
    return configure(spec, site, 1000, facts, paces, ran_out=out)


def task_of(plan):
    """The task that a plan becomes."""
    return TrainingTask(
        model=TASK.model,
        dataset="data.jsonl",
        method=plan.method,
        per_device_train_batch_size=plan.microbatch,
        global_batch=plan.global_batch,
        max_length=plan.max_length,
        precision=plan.precision,
        gradient_checkpointing=plan.gradient_checkpointing,
    )


@pytest.mark.parametrize("method", list(TrainingMethod))
def test_what_ran_is_found_again_by_whoever_plans_the_same(store, tmp_path, method):
    task = msgspec.structs.replace(TASK, method=method)
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", task=task))
    source = HistorySource(store.observations.history())
    asked = Question(max_length=task.max_length, bf16=True).configuration(
        method,
        task.model,
        None,
        Site.of(SITE, installed_software()),
        microbatch=task.per_device_train_batch_size,
        accumulation=task.microbatches,
        checkpointing=task.gradient_checkpointing,
    )
    assert asked.precision is (
        Precision.BF16_MIXED if method is TrainingMethod.FULL else Precision.BF16
    )
    told = store.observations.history()[0].configuration
    lengths = ("tokens_per_sample", "longest_sample")
    asked = asked.replace(**{field: getattr(told, field) for field in lengths})
    asked = asked.replace(tokens_per_microbatch=task.microbatch_tokens, batch_size=1)
    found = source.query(packed_rows(Configurations.of([asked.replace(fast_kernels=True)])))[0]
    assert found.measured
    assert found.tokens_per_s.middle == pytest.approx(4000)


def test_a_model_in_a_folder_is_found_again(store, tmp_path):
    folder = tmp_path / "llama-3.2-3b"
    folder.mkdir()
    (folder / "config.json").write_text("{}", "utf-8")
    task = msgspec.structs.replace(TASK, model=str(folder))
    record_observations(store, SITE, "tuning-1", lived(tmp_path / "job", task=task))
    assert len(measured_paces(store.observations.history(), spec_of(str(folder)))) == 2
    assert measured_paces(store.observations.history(), spec_of("llama3.2-3b")) == ()


def test_the_next_job_is_as_fast_as_the_last_one_was(store, tmp_path):
    task = task_of(planned_again(History.empty()))
    story = lived(tmp_path / "job", task=task, pace={1: 60.0})
    record_observations(store, SITE, "tuning-1", story)
    plan = planned_again(store.observations.history())
    assert plan.basis is Basis.MEASURED
    assert plan.step_s[1] == pytest.approx(0.5)


def test_the_next_job_avoids_what_the_last_one_ran_out_of_memory_with(store, tmp_path):
    failed = Progress(world=2, phase=Phase.FAILED, out_of_memory=True, at=1.7e9)
    before = planned_again(History.empty())
    story = lived(tmp_path / "job", task=task_of(before), progress=failed, pace={})
    record_observations(store, SITE, "tuning-1", story)
    after = planned_again(store.observations.history())
    assert after.max_length == before.max_length
    assert (after.microbatch, after.gradient_checkpointing) != (
        before.microbatch,
        before.gradient_checkpointing,
    )
