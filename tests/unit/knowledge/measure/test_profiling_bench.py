"""Real steps of a tiny model on the CPU, and what becomes of trials that go wrong."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from duetune.knowledge.measure import measuring_worker
from duetune.knowledge.measure.worker_messages import (
    DONE,
    POISONED,
    Header,
    Ready,
    Timing,
    Trial,
    TrialResult,
    computed_dtype,
    weight_dtype,
)
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
bench_module = later("duetune.knowledge.measure.bench")
memories = later("duetune.knowledge.measure.device_memory")

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
        "batch_size": 2,
        "tokens_per_sample": 16,
        "grad_checkpoint": True,
        "lora_rank": 4,
        "lora_targets": "attention",
        "optimiser": "adamw",
        "attention": "sdpa",
    }
    return Trial(**{**values, **changes})


def header(weights="bfloat16", timing=QUICK):
    return Header(model="tiny", config=TINY, weights=weights, device="cpu", timing=timing)


@pytest.fixture(scope="module", autouse=True)
def _alone():
    """One thread: more would wait for each other where tests run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()


@pytest.fixture(scope="module")
def bench():
    made = bench_module.Bench(header())
    made.build()
    return made


@pytest.fixture
def subject(bench):
    return bench._subject


@pytest.mark.parametrize(
    ("method", "optimiser", "grad_checkpoint", "attention"),
    [
        (*pair, *rest)
        for pair, rest in zip(
            itertools.product(("full", "lora"), ("adamw", "sgd", "adafactor")),
            itertools.cycle(((True, "sdpa"), (False, "eager"), (True, "eager"))),
            strict=False,
        )
    ],
)
def test_a_trial_that_works_has_a_pace(bench, method, optimiser, grad_checkpoint, attention):
    result = bench.run(
        trial(
            method=method,
            optimiser=optimiser,
            grad_checkpoint=grad_checkpoint,
            attention=attention,
        )
    )
    assert (result.outcome, result.error, result.flags) == ("valid", "", ())
    assert result.steps >= 2
    assert result.tokens_per_s == pytest.approx(32 / result.step_s)
    assert result.loss == pytest.approx(4.85, abs=0.3)  # about the logarithm of the vocabulary
    assert result.peak_memory_gb is None


def test_weights_of_32_bits_are_computed_with_in_16():
    made = bench_module.Bench(header("float32"))
    made.build()
    seen = []
    made._subject._base.lm_head.register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.dtype)
    )
    assert made.run(trial(method="full", precision="bf16-mixed")).outcome == "valid"
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    assert made.run(trial(method="full", precision="fp32")).outcome == "valid"
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize(
    ("method", "precision", "weights", "computed"),
    [
        ("full", "bf16", "bfloat16", None),
        ("lora", "bf16", "bfloat16", "bfloat16"),
        ("full", "bf16-mixed", "float32", "bfloat16"),
        ("lora", "bf16-mixed", "float32", "bfloat16"),
        ("full", "fp16-mixed", "float32", "float16"),
        ("full", "fp32", "float32", None),
        ("lora", "fp32", "float32", None),
    ],
)
def test_a_precision_says_what_weights_and_products_are_in(method, precision, weights, computed):
    assert weight_dtype(precision) == weights
    assert computed_dtype(method, precision) == computed


def test_an_adapter_is_trained_alone_and_in_32_bits(bench, subject):
    bench.run(trial(lora_targets="all-linear"))
    trained = list(subject.trained())
    assert {each.dtype for each in trained} == {torch.float32}
    assert len(trained) == 2 * 2 * 7
    names = [name for name, each in subject._model.named_parameters() if each.requires_grad]
    assert all("lora_" in name for name in names)


def test_after_an_adapter_the_model_is_plain_again_and_all_of_it_trained(bench, subject):
    bench.run(trial(method="full"))
    plain = {name: each.shape for name, each in subject._model.named_parameters()}
    bench.run(trial(lora_rank=8, lora_targets="all-linear"))
    bench.run(trial(method="full"))
    assert {name: each.shape for name, each in subject._model.named_parameters()} == plain
    assert len(list(subject.trained())) == len(plain)


def test_an_adapter_is_kept_while_it_fits(bench, subject, monkeypatch):
    bench.run(trial())
    monkeypatch.setattr(subject, "_attach", lambda _: pytest.fail("built anew"))
    assert bench.run(trial(batch_size=1, grad_checkpoint=False)).outcome == "valid"


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
    bench, subject, monkeypatch, error, outcome, flags
):
    if error is OUT_OF_MEMORY:
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def fail(*_args, **_more):
        for parameter in subject.trained():
            parameter.grad = torch.ones_like(parameter)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("duetune.knowledge.measure.bench.optimiser_for", fail)
        result = bench.run(trial(method="full"))
    assert (result.outcome, result.flags) == (outcome, flags)
    assert result.error.startswith(type(error).__name__)
    assert "\n" not in result.error
    assert result.tokens_per_s is None
    if not flags:
        assert all(each.grad is None for each in subject.trained())
    assert bench.run(trial(method="full")).outcome == "valid"


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "flash"},
        {"optimiser": "adamw-8bit"},
        {"method": "qlora"},
        {"fast_kernels": True},
        {"num_gpus": 2},
    ],
)
def test_what_cannot_be_run_here_failed_and_did_not_run_out_of_memory(bench, changes):
    result = bench.run(trial(**changes))
    assert result.outcome == "failed"
    assert result.error.startswith("Unsupported")


def test_a_model_that_does_not_fit_runs_out_of_memory_in_every_trial(monkeypatch):
    def fail(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("duetune.knowledge.measure.bench.Subject", fail)
    made = bench_module.Bench(header())
    assert made.build().parameters == 0
    assert made.run(trial()).outcome == "oom"


def test_a_slow_first_step_is_the_only_one():
    made = bench_module.Bench(header(timing=Timing(slow_step_s=0.0)))
    made.build()
    result = made.run(trial())
    assert (result.steps, result.flags) == (1, ("first-step-only",))
    assert result.step_s == result.first_step_s


def test_measuring_ends_when_time_is_up():
    made = bench_module.Bench(header(timing=Timing(min_steps=10**6, max_s=0.05)))
    made.build()
    result = made.run(trial())
    assert result.flags == ("few-steps",)
    assert result.outcome == "valid"


class FakeCuda:
    """A GPU of 100 bytes of which the context has 5 and torch ``reserved``."""

    def __init__(self, patch, reserved=0):
        self.fraction = None
        self.reserved = reserved
        answers = {
            "get_device_properties": lambda _: type("Gpu", (), {"total_memory": 100})(),
            "mem_get_info": lambda _: (100 - 5 - self.reserved, 100),
            "memory_reserved": lambda _: self.reserved,
            "reset_peak_memory_stats": lambda _: None,
            "set_per_process_memory_fraction": self._limit,
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)

    def _limit(self, fraction, _device):
        self.fraction = fraction


def test_a_cap_leaves_what_the_context_does_not_take(monkeypatch):
    gpu = FakeCuda(monkeypatch, reserved=20)
    memory = memories.DeviceMemory.__new__(memories.DeviceMemory)
    memory._device, memory._gpu, memory.total = torch.device("cuda"), True, 100
    assert memory.context == 5
    assert memory.restart(trial(cap_bytes=45))
    assert gpu.fraction == pytest.approx(0.40)
    assert memory.restart(trial())
    assert gpu.fraction == 1.0
    assert not memory.restart(trial(cap_bytes=24)), "20 are reserved, 19 are left"


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
    places = batch(trial(id="a"), trial(id="b", method="full"))
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


def test_trials_without_a_cap_come_first_and_adapters_seldom_change():
    trials = [
        trial(id="capped", cap_bytes=9),
        trial(id="b", lora_rank=8),
        trial(id="full", method="full"),
        trial(id="c", batch_size=64),
        trial(id="d"),
    ]
    assert [each.id for each in measuring_worker.ordered(trials)] == [
        "full",
        "d",
        "c",
        "b",
        "capped",
    ]
