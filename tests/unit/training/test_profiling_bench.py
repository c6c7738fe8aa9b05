"""Real steps of a tiny model on the CPU, and what becomes of trials that go wrong."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from unittest.mock import patch

import pytest

from duetune.knowledge.measure.worker_messages import (
    DONE,
    POISONED,
    Header,
    Ready,
    Timing,
    Trial,
    TrialResult,
    ordered,
)
from duetune.training.profiler import measuring_worker
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
bench_module = later("duetune.training.profiler.bench")
subjects = later("duetune.training.profiler.subject")
random_rows = later("duetune.training.profiler.random_rows")

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
QUICK = Timing(warm_up_steps=1, min_steps=2, min_s=0.0, max_s=5.0)
OUT_OF_MEMORY = "torch's own error"


def trial(**changes):
    values = {
        "id": "one",
        "method": "lora",
        "precision": "bf16",
        "batch_size": 1,
        "tokens_per_sample": 16,
        "tokens_per_microbatch": 32,
        "longest_sample": 0,
        "grad_checkpoint": True,
        "lora_rank": 4,
        "lora_targets": "attention",
        "optimiser": "adamw",
        "attention": "varlen",
    }
    return Trial(**{**values, **changes})


def header(timing=QUICK):
    return Header(model="tiny", config=TINY, device="cpu", timing=timing)


@pytest.fixture(scope="module", autouse=True)
def _alone():
    """One thread: more would wait for each other where tests run side by side. The garbage
    collector rests: it would go through all that the other tests have left, after every trial.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with patch("duetune.training.profiler.device_memory.gc"):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench():
    made = bench_module.Bench(header())
    made.build(trial())
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "full", "precision": "bf16-mixed", "grad_checkpoint": False},
        {"grad_accum": 2, "lora_targets": "q_proj+v_proj"},
        {"longest_sample": 24, "tokens_per_sample": 12, "lora_targets": "all-linear"},
        {"method": "full", "optimiser": "adafactor"},
        {"method": "qlora", "optimiser": "adamw-8bit"},
    ],
)
def test_a_trial_is_steps_of_the_trainer_and_has_a_pace(bench, changes):
    each = trial(**changes)
    result = bench.run(each)
    assert (result.outcome, result.error, result.flags) == ("valid", "", ())
    assert result.steps >= 2
    tokens = random_rows.row_lengths(each, 0).sum()
    assert result.tokens_per_s == pytest.approx(tokens / each.grad_accum / result.step_s)
    assert result.step_rows == len(random_rows.row_lengths(each, 0))
    assert result.loss == pytest.approx(4.85, abs=0.3)  # about the logarithm of the vocabulary
    assert result.peak_memory_gb is None


def test_the_trainers_own_state_makes_the_steps(bench, monkeypatch):
    seen = []
    whole = subjects.SharedState.update

    def update(self, total):
        seen.append(self)
        whole(self, total)

    monkeypatch.setattr(subjects.SharedState, "update", update)
    result = bench.run(trial())
    assert len(seen) == QUICK.warm_up_steps + result.steps
    assert len(set(seen)) == 1


@pytest.mark.parametrize(
    ("mean", "longest", "budget", "count"),
    [(16, 0, 64, 1), (16, 128, 1024, 1), (100, 800, 4096, 4), (300, 2048, 16384, 1)],
)
def test_rows_fill_the_microbatches_and_have_the_mean_length(mean, longest, budget, count):
    each = trial(
        tokens_per_sample=mean,
        longest_sample=longest,
        tokens_per_microbatch=budget,
        grad_accum=count,
    )
    lengths = random_rows.row_lengths(each, 0)
    assert 0.97 * budget * count <= lengths.sum() <= budget * count
    assert lengths.max() <= max(longest, mean)
    assert lengths.min() >= 2
    assert lengths.mean() == pytest.approx(mean, rel=0.3)


def trained(bench):
    return {
        name: each for name, each in bench._subject._model.named_parameters() if each.requires_grad
    }


def test_an_adapter_is_on_the_layers_that_are_named(bench):
    bench.run(trial(lora_targets="q_proj+v_proj"))
    names = set(trained(bench))
    assert len(names) == 2 * 2 * 2
    assert all("lora_" in name and ("q_proj" in name or "v_proj" in name) for name in names)


def test_after_an_adapter_the_model_is_plain_again_and_all_of_it_trained(bench):
    full = trial(method="full", precision="bf16-mixed")
    bench.run(full)
    plain = {name: each.shape for name, each in trained(bench).items()}
    bench.run(trial(lora_rank=8, precision="fp32", lora_targets="all-linear"))
    bench.run(full)
    assert {name: each.shape for name, each in trained(bench).items()} == plain


def test_a_prepared_model_is_kept_while_it_fits(bench, monkeypatch):
    bench.run(trial())
    monkeypatch.setattr(
        "duetune.training.profiler.subject.prepared", lambda *_: pytest.fail("built anew")
    )
    assert bench.run(trial(tokens_per_microbatch=64)).outcome == "valid"


@pytest.mark.parametrize(
    ("error", "outcome", "flags"),
    [
        (OUT_OF_MEMORY, "oom", ()),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "oom", ()),
        (RuntimeError("CUDA error: an illegal memory access"), "failed", ("poisoned",)),
        (ValueError("shapes differ\nand more"), "failed", ()),
    ],
)
def test_what_goes_wrong_is_told_apart_and_the_next_trial_runs(
    bench, monkeypatch, error, outcome, flags
):
    if error is OUT_OF_MEMORY:
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def fail(*_args, **_more):
        for parameter in trained(bench).values():
            parameter.grad = torch.ones_like(parameter)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(subjects.SharedState, "contribution", fail)
        result = bench.run(trial())
    assert (result.outcome, result.flags) == (outcome, flags)
    assert result.error.startswith(type(error).__name__)
    assert "\n" not in result.error
    assert result.tokens_per_s is None
    if not flags:
        assert all(each.grad is None for each in trained(bench).values())
    assert bench.run(trial()).outcome == "valid"


def test_what_cannot_be_run_here_failed_and_did_not_run_out_of_memory(bench):
    result = bench.run(trial(num_gpus=2))
    assert result.outcome == "failed"
    assert result.error.startswith("Unsupported")


def test_a_model_that_does_not_fit_runs_out_of_memory_in_every_trial(monkeypatch):
    def fail(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("duetune.training.profiler.bench.Subject", fail)
    made = bench_module.Bench(header())
    assert made.build(trial()).parameters == 0
    assert made.run(trial()).outcome == "oom"


def test_measuring_ends_when_time_is_up_but_not_with_the_first_step():
    made = bench_module.Bench(header(timing=Timing(min_steps=10**6, max_s=0.0)))
    made.build(trial())
    result = made.run(trial())
    assert (result.outcome, result.steps, result.flags) == ("valid", 1, ("few-steps",))
    assert result.first_step_s != result.step_s


@pytest.fixture
def batch(tmp_path):
    """Writes a batch; gives where, and where results are to be. Signals are restored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def write(*trials):
        path = tmp_path / "batch.jsonl"
        path.write_text("\n".join([header().line(), *(each.line() for each in trials)]) + "\n")
        return [str(path), str(tmp_path / "results.jsonl")]

    yield write
    for number, handler in before.items():
        signal.signal(number, handler)


def events(places):
    return [json.loads(line) for line in Path(places[1]).read_text().splitlines()]


def test_the_worker_writes_before_and_after_each_trial(batch):
    places = batch(trial(id="a"), trial(id="b", lora_rank=2))
    assert measuring_worker.main(places) == DONE
    ready, *rest = events(places)
    assert Ready.of(ready).parameters > 0
    assert [(each["event"], each["id"]) for each in rest] == [
        ("started", "b"),
        ("result", "b"),
        ("started", "a"),
        ("result", "a"),
    ]
    assert TrialResult.of(rest[1]).outcome == "valid"


def test_the_worker_ends_after_the_current_trial_when_told_to(batch, monkeypatch):
    def run(_self, each):
        os.kill(os.getpid(), signal.SIGTERM)
        return TrialResult(id=each.id, outcome="oom", measured_at=0.0, runtime_s=0.1)

    monkeypatch.setattr(bench_module.Bench, "run", run)
    places = batch(trial(id="a"), trial(id="b"))
    assert measuring_worker.main(places) == DONE
    assert [each["id"] for each in events(places) if each["event"] == "result"] == ["a"]


def test_the_worker_ends_when_whoever_started_it_is_gone(batch, monkeypatch):
    parents = iter((1, 1, 1, 2, 2, 2))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    places = batch(trial(id="a"), trial(id="b"))
    assert measuring_worker.main(places) == DONE
    assert [each["id"] for each in events(places) if each["event"] == "result"] == ["a"]


def test_the_worker_ends_at_once_when_the_gpu_is_lost(batch, monkeypatch):
    def run(_self, each):
        return TrialResult(
            id=each.id, outcome="failed", measured_at=0.0, runtime_s=0.1, flags=("poisoned",)
        )

    monkeypatch.setattr(bench_module.Bench, "run", run)
    places = batch(trial(id="a"), trial(id="b"))
    assert measuring_worker.main(places) == POISONED
    assert [each["id"] for each in events(places) if each["event"] == "started"] == ["a"]


def test_no_model_without_fused_kernels_is_built_after_one_with_them():
    """Liger replaces the layers of a model's family for the rest of the process."""
    trials = [
        trial(id=f"{method} {fused}", method=method, precision=precision, fast_kernels=fused)
        for method, precision in (("qlora", "bf16"), ("full", "bf16-mixed"), ("lora", "bf16"))
        for fused in (True, False)
    ]
    fused = [each.fast_kernels for each in ordered(trials)]
    assert fused == sorted(fused)


def test_trials_that_need_the_same_model_follow_each_other():
    trials = [
        trial(id="b", lora_rank=8),
        trial(id="full", method="full", precision="bf16-mixed"),
        trial(id="c", tokens_per_microbatch=64),
        trial(id="fused", fast_kernels=True),
        trial(id="d"),
    ]
    assert [each.id for each in ordered(trials)] == ["d", "c", "b", "full", "fused"]
