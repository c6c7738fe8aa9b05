"""What is kept beside the journal: the selector's states and measured throughput."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from duetune.knowledge.configurations.configuration import Configuration
from duetune.knowledge.history import History
from duetune.knowledge.observation import Observation, Origin, RunOutcome
from duetune.store.measured_runs_table import _key

OBSERVATION = Observation(
    configuration=Configuration(
        model="org/model", gpu_model="A100-80GB", num_gpus=2, batch_size=8, software="größe \0"
    ),
    outcome=RunOutcome.VALID,
    tokens_per_s=49_152.0,
    step_s=1 / 3,
    measured_at=1_700_000_000.5,
    origin=Origin.PRODUCTION,
    provenance="job tuning",
    flags=("mem_saturated",),
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
        OBSERVATION, outcome=RunOutcome.OOM, tokens_per_s=None, measured_at=1_800_000_000.0
    )
    assert store.observations.record_all([OBSERVATION]) == 1
    assert store.observations.record_all([failed]) == 1
    assert store.observations.history() == History([OBSERVATION, failed])


def test_history_is_in_the_order_of_measuring_and_can_be_asked_for_in_part(store):
    late, early = (
        msgspec.structs.replace(
            OBSERVATION,
            configuration=OBSERVATION.configuration.replace(model=model),
            measured_at=moment,
            provenance=model,
            origin=origin,
        )
        for model, moment, origin in (("b", 2.0, Origin.IMPORT), ("a", 1.0, Origin.CAMPAIGN))
    )
    assert store.observations.record_all([late, early]) == 2
    history = store.observations.history
    assert list(history()) == [early, late]
    assert list(history(origin=Origin.CAMPAIGN)) == [early]
    assert list(history(provenance="b")) == [late]
    assert len(history(provenance="c")) == 0


def test_the_same_is_kept_once(store):
    other = msgspec.structs.replace(OBSERVATION, tokens_per_s=99.0)
    assert store.observations.record_all([OBSERVATION]) == 1
    assert store.observations.record_all([OBSERVATION]) == 0
    assert store.observations.record_all([OBSERVATION, other, other]) == 1
    assert len(store.observations.history()) == 2
    assert store.observations.record_all([]) == 0


def test_many_are_recorded_at_once(store):
    many = [
        msgspec.structs.replace(OBSERVATION, provenance=f"file:{row}", measured_at=float(row))
        for row in range(1200)
    ]
    assert store.observations.record_all(many) == 1200
    assert store.observations.record_all(many) == 0
    assert store.observations.history() == History(many)


def test_recorded_by_many_at_once_it_still_counts_once(store):
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(store.observations.record_all, [[OBSERVATION]] * 12))
    assert sorted(done) == [0] * 11 + [1]
    assert store.observations.history() == History([OBSERVATION])


def test_a_field_that_is_added_one_day_changes_no_key():
    wider = msgspec.defstruct(
        "Wider", [("more", float | None, None)], bases=(Observation,), frozen=True, kw_only=True
    )
    fields = msgspec.structs.asdict(OBSERVATION)
    assert _key(wider(**fields)) == _key(OBSERVATION)
    assert _key(wider(**fields, more=1.0)) != _key(OBSERVATION)
