from __future__ import annotations

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.configurations.space_files import default_space
from duetune.knowledge.estimate import Cause
from duetune.knowledge.history import History
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.blind import DefaultSource
from duetune.knowledge.sources.decorators import Cached, Noisy, Partial, Stale
from duetune.knowledge.sources.knowledge_source import Capability, Limits, Objective
from duetune.knowledge.sources.past_runs import HistorySource, OracleSource
from duetune.registry.sources import source_named
from duetune.testing.sample_histories import small_space, synthetic_history, synthetic_run

JOB = {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "tokens_per_sample": 2048}
MANY = default_space().given({"model": "meta-llama/Llama-3.1-8B"}).points()
ALL = MANY.take(broken(MANY) < 0)
POINTS = small_space().given(JOB).points()
RUNS = [synthetic_run(row, measured_at=60.0 * minute) for minute, row in enumerate(POINTS)]


def off(mape, bias=0.0, seed=0):
    plain = AnalyticSource()
    noisy = Noisy(plain, mape, bias, seed)
    return noisy.query(ALL).tokens_per_s[:, 1] / plain.query(ALL).tokens_per_s[:, 1]


@pytest.mark.parametrize("mape", [0.05, 0.2, 0.5, 1.0])
def test_noise_is_as_large_as_said(mape):
    ratio = np.concatenate([off(mape, seed=seed) for seed in range(8)])
    assert np.mean(np.abs(ratio - 1.0)) == pytest.approx(mape, rel=0.06)
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)


def test_noise_is_the_same_for_the_same_seed_and_none_where_none_is_wanted():
    assert off(0.2, seed=3).tolist() == off(0.2, seed=3).tolist()
    assert off(0.2, seed=3).tolist() != off(0.2, seed=4).tolist()
    assert off(0.0) == pytest.approx(1.0)


def test_bias_moves_every_pace():
    assert off(0.0, bias=-0.3) == pytest.approx(0.7)


@pytest.mark.parametrize(("mape", "bias"), [(-0.1, 0.0), (99.0, 0.0), (0.1, -1.0), (np.nan, 0.0)])
def test_noise_that_cannot_be_is_refused(mape, bias):
    with pytest.raises(InvalidInput):
        Noisy(AnalyticSource(), mape, bias)


def test_a_noisy_source_chooses_by_what_it_believes():
    truth = OracleSource(History(RUNS))
    best = truth.complete(JOB, small_space(), Objective.FASTEST, Limits(top=1)).candidates[0]
    chosen = {
        Noisy(truth, 1.0, seed=seed)
        .complete(JOB, small_space(), Objective.FASTEST, Limits(top=1))
        .candidates[0]
        .configuration
        for seed in range(12)
    }
    assert len(chosen) > 1
    assert chosen != {best.configuration}


def test_a_stale_source_learns_so_many_runs_later():
    source = Stale(HistorySource(History.empty()), lag=2)
    known = []
    for run in RUNS[:5]:
        source.observe(run)
        found = source.query(Configurations.of(each.configuration for each in RUNS[:5]))
        known.append(int(found.measured.sum()))
    assert known == [0, 0, 1, 2, 3]


def test_a_stale_source_by_name_has_not_seen_the_last_of_history():
    measured = source_named("stale:4:history", History(RUNS)).query(POINTS).measured
    known = broken(POINTS) < 0
    known[-4:] = False
    assert measured.tolist() == known.tolist()


def test_a_stale_source_learns_so_many_seconds_later():
    source = Stale(HistorySource(History.empty()), age_s=90.0)
    known = []
    for run in RUNS[:5]:
        source.observe(run)
        found = source.query(Configurations.of(each.configuration for each in RUNS[:5]))
        known.append(int(found.measured.sum()))
    assert known == [0, 0, 1, 2, 3]


def test_without_validity_all_that_breaks_no_rule_is_taken_to_fit():
    source = Partial(HistorySource(History(RUNS)), ["validity"])
    found = source.query(POINTS)
    assert set(found.p_valid.tolist()) == {0.0, 1.0}
    assert ((found.p_valid == 0) == (broken(POINTS) >= 0)).all()
    assert Capability.VALIDITY not in source.capabilities


def test_what_is_hidden_makes_no_difference():
    source = Partial(AnalyticSource(), ["lora_rank", "gpu_model", "sharding"])
    row = ALL[5]
    other = row.replace(lora_rank=256, gpu_model="T4")
    found = source.query(Configurations.of([row, other]))
    assert found.tokens_per_s[0].tolist() == found.tokens_per_s[1].tolist()
    assert found.p_valid[0] == found.p_valid[1]
    shown = AnalyticSource().query(Configurations.of([row, other]))
    assert shown.tokens_per_s[0].tolist() != shown.tokens_per_s[1].tolist()


def test_hiding_does_not_hide_a_broken_rule_nor_make_one():
    source = Partial(AnalyticSource(), ["num_gpus", "sharding"])
    row = ALL[0].replace(num_gpus=16, num_nodes=2, batch_size=16, sharding="fsdp")
    kept, against = (
        source.query(Configurations.of([each]))[0] for each in (row, row.replace(batch_size=3))
    )
    assert kept.cause is not Cause.RULE
    assert (against.p_valid, against.cause) == (0.0, Cause.RULE)


@pytest.mark.parametrize(
    ("field", "column"), [("throughput", "tokens_per_s"), ("memory", "memory_gb")]
)
def test_what_is_not_answered_is_not_a_number(field, column):
    found = Partial(AnalyticSource(), [field]).query(ALL)
    assert np.isnan(getattr(found, column)).all()


def test_without_uncertainty_the_middle_is_all_there_is():
    found = Partial(AnalyticSource(), ["uncertainty"]).query(ALL)
    assert (found.tokens_per_s[:, 0] == found.tokens_per_s[:, 2]).all()


def test_a_field_that_does_not_exist_cannot_be_hidden():
    with pytest.raises(InvalidInput, match="colour"):
        Partial(AnalyticSource(), ["colour"])


class Counting(AnalyticSource):
    def __init__(self):
        super().__init__()
        self.asked = 0
        self.state = 0

    @property
    def version(self):
        return f"{super().version}-{self.state}"

    def query(self, configurations):
        self.asked += 1
        return super().query(configurations)


def test_a_cached_source_is_asked_once_until_its_version_changes():
    inner = Counting()
    source = Cached(inner)
    first = source.query(ALL)
    again = source.query(Configurations.of(list(ALL)[:3]))
    source.query(ALL)
    assert inner.asked == 2
    assert again.p_valid.tolist() == first.p_valid[:3].tolist()
    inner.state = 1
    source.query(ALL)
    assert inner.asked == 3


def test_a_cache_tells_words_apart_that_have_the_same_code():
    inner = Counting()
    source = Cached(inner)
    one, other = ALL[0], ALL[0].replace(model="llama3.1-70b")
    small = source.query(Configurations.of([one]))[0]
    large = source.query(Configurations.of([other]))[0]
    assert small.tokens_per_s.middle > large.tokens_per_s.middle


def test_a_cache_forgets_the_oldest():
    inner = Counting()
    source = Cached(inner, kept=2)
    for row in (0, 1, 2, 0):
        source.query(ALL.take(np.array([row])))
    assert inner.asked == 4


def test_a_source_that_chooses_blindly_does_so_under_any_decorator():
    plain = DefaultSource().complete(JOB, small_space(), Objective.FASTEST, Limits())
    for name in ("cached:default", "noisy:0.5:default", "partial:software:default"):
        source = source_named(name, synthetic_history())
        ranking = source.complete(JOB, small_space(), Objective.FASTEST, Limits())
        assert [each.configuration for each in ranking.candidates] == [
            each.configuration for each in plain.candidates
        ]
