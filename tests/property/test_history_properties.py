from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from duetune.knowledge.configurations.configuration import (
    Configuration,
    Method,
    Precision,
    Sharding,
)
from duetune.knowledge.facts.gpus import GPUS
from duetune.knowledge.history import History
from duetune.knowledge.history_files import read_history, write_history
from duetune.knowledge.observation import Observation, Origin, RunOutcome

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
counts = st.integers(1, 1024)
above_zero = st.floats(1e-6, 1e9)
configurations = st.builds(
    Configuration,
    model=st.sampled_from(["org/one", "org/two", "meta-llama/Llama-3.2-3B"]),
    method=st.sampled_from(Method),
    gpu_model=st.sampled_from([*GPUS, "CPU", "emulated"]),
    num_gpus=counts,
    batch_size=counts,
    tokens_per_sample=counts,
    precision=st.sampled_from(Precision),
    sharding=st.sampled_from(Sharding),
    grad_checkpoint=st.booleans(),
    memory_cap_gb=st.floats(0, 1000),
    software=words,
)
observations = st.builds(
    Observation,
    configuration=configurations,
    outcome=st.sampled_from(RunOutcome),
    tokens_per_s=above_zero,
    step_s=st.none() | above_zero,
    peak_memory_gb=st.none() | st.floats(0.01, 12.0),
    power_w=st.none() | st.floats(0, 1e4),
    steps=st.none() | st.integers(0, 10**9),
    measured_at=st.floats(0, 1e10),
    origin=st.sampled_from(Origin),
    provenance=words.filter(bool),
    protocol=words,
    error=words,
    weight=above_zero,
    flags=st.lists(st.sampled_from(["a", "b c", "mem_saturated"]), max_size=2).map(tuple),
)
histories = st.lists(observations, max_size=8).map(History)


@given(histories)
def test_a_file_gives_back_what_was_written_to_the_bit(history):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.csv"
        write_history(path, history)
        again = read_history(path)
    assert again == history
    assert again.snapshot == history.snapshot


@given(histories, st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_change_the_snapshot(history, random):
    rows = [*history, *history]
    random.shuffle(rows)
    assert History(rows).snapshot == history.snapshot
    assert len(History.empty().plus(rows)) == len(history.keys)


@given(histories)
def test_every_observation_is_either_believed_or_quarantined(history):
    believed, doubted = history.plausible, history.quarantined
    assert len(believed) + len(doubted) == len(history)
    assert {each.observation.key for each in doubted} | believed.keys == history.keys
    assert believed.quarantined == ()
