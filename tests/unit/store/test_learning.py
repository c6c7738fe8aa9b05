"""What is kept beside the journal: the selector's states and measured throughput."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from duetune.store import Observation, RunOutcome

pytest_plugins = ["postgres"]

OBSERVATION = Observation(
    job="tuning",
    gpus=2,
    model="org/model",
    method="lora",
    gpu="A100-80GB",
    microbatch=4,
    global_batch=32,
    sequence_length=2048,
    precision="bf16",
    measured_at=1_700_000_000.5,
    steps_per_s=0.75,
    tokens_per_s=49_152.0,
    versions={"torch": "2.13.0", "größe": "\0"},
)


def test_a_pool_that_has_learnt_nothing_has_no_state(store):
    assert store.selector.load("pool") is None
    assert store.selector.history("pool") == []


def test_versions_follow_each_other_and_are_kept(store):
    payloads = [b"", b"\x00\xff", b"{}" * 10_000]
    for version, payload in enumerate(payloads):
        assert store.selector.save("pool", payload, expected=version)
    assert store.selector.load("pool").version == 3
    assert [state.payload for state in store.selector.history("pool")] == payloads
    assert store.selector.load("other") is None


def test_whoever_expects_another_version_saves_nothing(store):
    assert store.selector.save("pool", b"1", expected=0)
    for expected in (-1, 0, 2, 99):
        assert not store.selector.save("pool", b"x", expected=expected)
    assert [state.payload for state in store.selector.history("pool")] == [b"1"]


def test_a_pool_learns_from_a_job_once(store):
    assert not store.selector.learnt("pool", "job")
    assert store.selector.save("pool", b"1", expected=0, job="job")
    assert store.selector.learnt("pool", "job")
    assert not store.selector.save("pool", b"2", expected=1, job="job")
    assert store.selector.save("pool", b"2", expected=1)
    assert store.selector.save("pool", b"3", expected=2)
    assert store.selector.save("other", b"1", expected=0, job="job")
    assert [state.job for state in store.selector.history("pool")] == ["job", None, None]


def test_of_two_that_learn_at_once_none_is_lost(store):
    def learn(name):
        while True:
            latest = store.selector.load("pool")
            expected, known = (0, b"") if latest is None else (latest.version, latest.payload)
            if store.selector.save("pool", known + name, expected=expected):
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learn, [b"a", b"b", b"c", b"d"] * 5))
    assert sorted(store.selector.load("pool").payload) == sorted(b"abcd" * 5)
    assert store.selector.load("pool").version == 20


def test_an_observation_comes_back_as_it_was(store):
    failed = msgspec.structs.replace(
        OBSERVATION, gpus=8, steps_per_s=None, tokens_per_s=None, outcome=RunOutcome.OUT_OF_MEMORY
    )
    assert store.observations.record(OBSERVATION)
    assert store.observations.record(failed)
    assert store.observations.observations() == [OBSERVATION, failed]
    assert store.observations.observations(model="org/model") == [OBSERVATION, failed]
    assert store.observations.observations(model="other") == []


def test_a_job_counts_once_at_each_number_of_gpus(store):
    again = msgspec.structs.replace(OBSERVATION, steps_per_s=99.0)
    assert store.observations.record(OBSERVATION)
    assert not store.observations.record(again)
    assert store.observations.observations() == [OBSERVATION]


def test_recorded_by_many_at_once_it_still_counts_once(store):
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(store.observations.record, [OBSERVATION] * 12))
    assert done.count(True) == 1
    assert store.observations.observations() == [OBSERVATION]
