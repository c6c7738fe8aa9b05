from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

import duetune.knowledge.sources.learned as learned_sources
from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import FIELDS, Configuration, Configurations
from duetune.knowledge.configurations.space import Domain
from duetune.knowledge.configurations.space_files import default_space
from duetune.knowledge.estimate import Cause
from duetune.knowledge.history import History
from duetune.knowledge.observation import Observation, RunOutcome
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.blind import DefaultSource, RandomSource, uniform
from duetune.knowledge.sources.knowledge_source import Limits, Objective
from duetune.knowledge.sources.learned import HybridSource, RegressionSource
from duetune.knowledge.sources.nearest import Metric, NearestSource
from duetune.knowledge.sources.past_runs import Encoder, HistorySource, Measured, OracleSource
from duetune.registry.sources import SOURCE_GROUP, source_named, sources_listed
from duetune.testing.sample_histories import small_space, synthetic_history, synthetic_run

JOB = {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "tokens_per_sample": 2048}
POINT = next(iter(small_space().given(JOB).points()))


def asked(source, *rows):
    found = source.query(Configurations.of(rows))
    return found[0] if len(rows) == 1 else [found[index] for index in range(len(rows))]


def run(configuration=POINT, pace=1000.0, **more):
    return Observation(
        configuration=configuration, outcome=RunOutcome.VALID, tokens_per_s=pace, **more
    )


def oom(configuration=POINT, **more):
    return Observation(configuration=configuration, outcome=RunOutcome.OOM, **more)


def test_measured_rows_are_found_among_others_by_value():
    history = synthetic_history()
    measured = Measured(history)
    known = [each.configuration for each in history][::-1]
    others = [row.replace(lora_rank=9) for row in known[:20]]
    found = measured.find(Configurations.of([*others, *known]))
    assert (found[:20] == -1).all()
    assert [measured.rows[int(row)] for row in found[20:]] == known


def test_more_combinations_than_numbers_are_told_apart_all_the_same():
    rng = np.random.default_rng(0)
    rows = [
        POINT.replace(
            model=f"m{index}",
            software=f"s{index}",
            gpu_model=f"g{index}",
            **{
                field: int(rng.integers(1, 10**6))
                for field in FIELDS
                if isinstance(getattr(POINT, field), int)
                and field not in {"grad_checkpoint", "fast_kernels"}
            },
        )
        for index in range(200)
    ]
    encoder = Encoder(Configurations.of(rows))
    assert sorted(encoder.find(Configurations.of(rows)).tolist()) == list(range(200))
    mixed = [row.replace(software="s0") for row in rows[1:]]
    assert (encoder.find(Configurations.of(mixed)) == -1).all()


def test_history_answers_with_medians_and_the_share_that_fitted():
    history = History([run(pace=pace, peak_memory_gb=20.0) for pace in (900.0, 1000.0, 5000.0)])
    estimate = asked(HistorySource(history), POINT)
    assert estimate.tokens_per_s.middle == pytest.approx(1000.0)
    assert estimate.memory_gb.middle == pytest.approx(20.0)
    assert estimate.p_valid == 0.99
    assert (estimate.support, estimate.measured) == (3, True)
    torn = History([run(), oom(), oom(provenance="2"), oom(provenance="3")])
    estimate = asked(HistorySource(torn), POINT)
    assert estimate.p_valid == 0.25
    assert estimate.cause is Cause.MEMORY


def test_history_knows_nothing_of_what_was_not_run():
    estimate = asked(HistorySource(History([run()])), POINT.replace(software="new"))
    assert estimate.p_valid == 0.5
    assert np.isnan(estimate.tokens_per_s.middle)
    assert estimate.extrapolated == ("software",)
    assert not estimate.measured


def test_a_run_that_cannot_be_true_is_not_believed():
    source = HistorySource(History([run(pace=1e7)]))
    assert asked(source, POINT).p_valid == 0.5


def test_the_oracle_is_certain():
    estimate = asked(OracleSource(History([run()])), POINT)
    assert estimate.p_valid == 1.0
    assert estimate.tokens_per_s.low == estimate.tokens_per_s.high == pytest.approx(1000.0)
    assert asked(OracleSource(History([oom()])), POINT).p_valid == 0.0


def test_the_oracle_chooses_the_best_that_was_measured():
    history = History(synthetic_run(row) for row in small_space().given(JOB).points())
    ranking = OracleSource(history).complete(JOB, small_space(), Objective.FASTEST, Limits())
    best = max(each.tokens_per_s or 0.0 for each in history)
    assert ranking.candidates[0].estimate.tokens_per_s.middle == pytest.approx(best)


def test_the_nearest_are_found_in_doublings():
    rows = [POINT.replace(batch_size=size) for size in (1, 2, 4, 8)]
    near = Metric(Configurations.of(rows)).nearest(Configurations.of([rows[2]]), 3, 1.5)
    assert near.row[0].tolist() == [2, 1, 3]
    assert near.distance[0].tolist() == [0.0, 1.0, 1.0]
    few = Metric(Configurations.of(rows)).nearest(Configurations.of([rows[2]]), 3, 0.5)
    assert few.row[0].tolist() == [2, -1, -1]


def test_packed_rows_are_near_by_their_tokens_and_never_near_padded_ones():
    packed = POINT.replace(batch_size=1, tokens_per_microbatch=8192)
    rows = [packed.replace(tokens_per_microbatch=size) for size in (8192, 16384, 65536)]
    near = Metric(Configurations.of([*rows, POINT])).nearest(Configurations.of([packed]), 4, 2.0)
    assert near.row[0].tolist() == [0, 1, -1, -1]
    assert near.distance[0, :2].tolist() == pytest.approx([0.0, 1.0])


def test_the_memory_of_a_measured_run_is_what_was_in_use():
    source = HistorySource(History([run(peak_memory_gb=50.0, needed_memory_gb=40.0)]))
    assert asked(source, POINT).memory_gb.middle == 40.0


def test_the_nearest_are_those_of_a_plain_search():
    history = synthetic_history()
    rows = Measured(history).rows
    points = small_space().given(JOB).points()
    near = Metric(rows).nearest(points, 4, 3.0)
    alone = Metric(rows)
    for index in range(0, len(points), 5):
        every = alone.nearest(points.take(np.array([index])), len(rows), 3.0)
        assert near.distance[index].tolist() == every.distance[0, :4].tolist()


def test_a_neighbour_answers_within_the_cut_off_only():
    source = NearestSource(History([run()]))
    twice = POINT.replace(batch_size=2 * POINT.batch_size)
    near, far = asked(source, twice, POINT.replace(method="full"))
    assert near.tokens_per_s.middle == pytest.approx(1000.0)
    assert 0.5 < near.p_valid < 0.99
    assert near.tokens_per_s.low < 900
    assert np.isnan(far.tokens_per_s.middle)
    assert far.p_valid == 0.5


def test_neighbours_are_compared_for_each_gpu():
    source = NearestSource(History([run(POINT.replace(batch_size=4))]))
    pair = POINT.replace(num_gpus=2, sharding="fsdp", batch_size=8)
    assert asked(source, pair).tokens_per_s.middle == pytest.approx(2000.0)


def test_an_explanation_names_the_runs_nearby_and_how_they_differ():
    other = POINT.replace(batch_size=2)
    explained = NearestSource(History([run(other), run()])).explain(POINT)
    assert [each.distance for each in explained.neighbours] == [0.0, 1.0]
    assert explained.neighbours[0].differs == ()
    assert explained.neighbours[1].differs == ("batch_size",)


def test_an_explanation_names_the_rule_that_is_broken():
    wrong = POINT.replace(num_gpus=2, batch_size=3, sharding="fsdp")
    explained = HistorySource(History.empty()).explain(wrong)
    assert explained.estimate.cause is Cause.RULE
    assert "same number of sequences" in explained.notes[0]


def test_the_default_is_four_gpus_of_the_first_kind_and_batch_16():
    ranking = DefaultSource().complete(JOB, small_space(), Objective.FASTEST, Limits())
    best = ranking.candidates[0].configuration
    assert (best.gpu_model, best.num_gpus, best.batch_size) == ("A100-80GB", 4, 16)
    assert "does not estimate" in ranking.note
    none_left = Limits(inventory={"L40S": 2})
    best = DefaultSource().complete(JOB, small_space(), Objective.FASTEST, none_left).candidates[0]
    assert (best.configuration.gpu_model, best.configuration.num_gpus) == ("L40S", 2)


def test_after_it_ran_out_the_default_takes_less():
    first = DefaultSource().complete(JOB, small_space(), Objective.FASTEST, Limits())
    limits = Limits(ran_out=(first.candidates[0].configuration,))
    second = DefaultSource().complete(JOB, small_space(), Objective.FASTEST, limits)
    assert second.candidates[0].configuration.batch_size == 8


def test_chance_follows_from_the_seed_and_favours_nothing():
    points = default_space().given({"model": "meta-llama/Llama-3.1-8B"}).points()
    numbers = uniform(points, 7)
    assert len(set(numbers.tolist())) == len(points)
    assert abs(numbers.mean() - 0.5) < 0.03
    assert np.histogram(numbers, 10, (0, 1))[0].min() > 70
    assert not np.array_equal(numbers, uniform(points, 8))
    chosen = {
        RandomSource(seed)
        .complete(JOB, small_space(), Objective.FASTEST, Limits(top=1))
        .candidates[0]
        .configuration
        for seed in range(30)
    }
    assert len(chosen) > 15


def test_chance_does_not_depend_on_how_words_are_coded():
    one = Configurations.of([POINT])
    many = Configurations.of([POINT.replace(model="aaa", software="b"), POINT])
    assert uniform(one, 3)[0] == uniform(many, 3)[1]


class StubModel:
    """Stands for the learned model; counts how often it is fitted."""

    fitted: list[int]

    def __init__(self, history):
        self.snapshot = history.snapshot
        self.learnt = history.keys

    def estimate(self, configurations):
        found = learned_sources.Estimates.unknown(len(configurations), "stub")
        found.p_valid[:] = 0.7
        found.tokens_per_s[:] = (400.0, 500.0, 600.0)
        found.memory_gb[:] = (10.0, 11.0, 12.0)
        return found

    def widen(self, configurations, measured, away):
        """Leave the intervals of measured runs alone, as a model of few runs does."""


@pytest.fixture
def fits(monkeypatch):
    sizes = []

    class Fitted(StubModel):
        @classmethod
        def fit(cls, history, *, seed=0):
            sizes.append((len(history), seed))
            return cls(history)

    monkeypatch.setattr(learned_sources, "KnowledgeModel", Fitted)
    return sizes


def test_a_model_is_fitted_when_asked_and_again_after_so_many_observations(fits):
    source = RegressionSource(History([run()]), refit_every=3)
    assert fits == []
    asked(source, POINT)
    versions = {source.version}
    for count in range(1, 8):
        source.observe(run(POINT.replace(lora_rank=100 + count)))
        versions.add(source.version)
        asked(source, POINT)
    assert fits == [(1, 0), (4, 0), (7, 0)]
    assert len(versions) == 8
    source.refit()
    asked(source, POINT)
    assert fits[-1] == (8, 0)


@pytest.mark.usefixtures("fits")
def test_a_version_tells_what_the_model_was_fitted_to():
    """Two sources with the same history but models of different age answer differently."""
    new = [run(POINT.replace(lora_rank=100 + count)) for count in range(2)]
    old = RegressionSource(History([run()]))
    for each in new:
        old.observe(each)
    assert old.version != RegressionSource(History([run(), *new])).version
    old.refit()
    assert old.version == RegressionSource(History([run(), *new])).version


def test_a_model_that_was_fitted_to_this_history_is_not_fitted_again(fits):
    history = History([run()])
    asked(RegressionSource(history, model=StubModel(history)), POINT)
    assert fits == []
    asked(RegressionSource(history, model=StubModel(History.empty())), POINT)
    assert fits == [(1, 0)]


def test_a_model_that_has_missed_a_few_runs_is_taken_as_it_is(fits):
    first = History([run()])
    more = first.plus([run(POINT.replace(lora_rank=100 + count)) for count in range(4)])
    asked(RegressionSource(more, model=StubModel(first), refit_every=5), POINT)
    assert fits == []
    asked(RegressionSource(more, model=StubModel(first), refit_every=4), POINT)
    assert fits == [(5, 0)]


def test_a_model_that_knows_what_history_does_not_is_not_taken(fits):
    model = StubModel(History([run(), run(POINT.replace(lora_rank=100))]))
    asked(RegressionSource(History([run()]), model=model), POINT)
    assert fits == [(1, 0)]


@pytest.mark.usefixtures("fits")
def test_every_rung_of_the_hybrid_answers_where_it_can():
    source = HybridSource(History([run(POINT.replace(batch_size=8), pace=1000.0)]))
    fitted = POINT.replace(batch_size=8)
    rungs = {
        "exact": fitted,
        "nearest": fitted.replace(batch_size=9),
        "frontier": fitted.replace(batch_size=2),
        "regression": fitted.replace(model="meta-llama/Llama-3.2-3B"),
        "rule": fitted.replace(num_gpus=3, sharding="fsdp"),
    }
    found = dict(zip(rungs, asked(source, *rungs.values()), strict=True))
    assert {name: estimate.source for name, estimate in found.items()} == {
        name: f"hybrid:{name}" for name in rungs
    }
    assert found["exact"].tokens_per_s.middle == pytest.approx(1000.0)
    assert found["exact"].measured
    assert found["exact"].memory_gb.middle == 11.0, "the rung below says what this one does not"
    assert found["nearest"].tokens_per_s.middle == pytest.approx(1000.0)
    assert found["frontier"].p_valid == 0.99
    assert found["frontier"].tokens_per_s.middle == 500.0
    assert found["regression"].p_valid == 0.7
    assert asked(HybridSource(History.empty()), POINT).source == "hybrid:analytic"


def test_the_hybrid_learns_at_once_from_one_that_ran_out(fits):
    source = HybridSource(History([run(POINT.replace(batch_size=1))]))
    assert asked(source, POINT.replace(batch_size=32)).p_valid == 0.7
    source.observe(oom(POINT.replace(batch_size=16)))
    exact, above, below = asked(source, *(POINT.replace(batch_size=size) for size in (16, 32, 4)))
    assert exact.p_valid == pytest.approx(0.01)
    assert exact.cause is Cause.MEMORY
    assert (above.p_valid, above.cause) == (pytest.approx(0.01), Cause.MEMORY)
    assert below.p_valid == 0.7
    assert fits == [(1, 0)]


def test_the_curve_is_limited_to_what_is_given_or_fixed():
    history = History(synthetic_run(row) for row in small_space().given(JOB).points())
    source = OracleSource(history)
    curve = source.curve(JOB, small_space(), ["A100-80GB", "L40S"], [1, 2, 4])
    assert set(curve) == {(gpu, count) for gpu in ("A100-80GB", "L40S") for count in (1, 2, 4)}
    paces = [curve["L40S", count].estimate.tokens_per_s.middle for count in (1, 2, 4)]
    assert paces == sorted(paces)
    best = max(
        each.tokens_per_s or 0.0
        for each in history
        if each.configuration.gpu_model == "L40S" and each.configuration.num_gpus == 4
    )
    assert paces[-1] == pytest.approx(best)
    given = source.curve({**JOB, "num_gpus": 2}, small_space(), ["L40S"], [1, 2, 4])
    assert set(given) == {("L40S", 2)}
    assert source.curve(JOB, small_space(), ["NVIDIA-L40S"], [1]).keys() == {("L40S", 1)}


def test_a_model_that_fits_nowhere_gives_no_curve_and_a_reason():
    history = History(oom(row) for row in small_space().given(JOB).points())
    source = HistorySource(history)
    assert source.curve(JOB, small_space(), ["L40S"], [1, 2]) == {}
    ranking = source.complete(JOB, small_space(), Objective.DEADLINE, Limits())
    assert "no configuration qualifies" in ranking.note
    assert "meta-llama/Llama-3.1-8B" in ranking.note


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("default", DefaultSource),
        ("random", RandomSource),
        ("history", HistorySource),
        (" nearest ", NearestSource),
        ("regression", RegressionSource),
        ("hybrid", HybridSource),
        ("oracle", OracleSource),
    ],
)
def test_a_name_becomes_a_source(name, kind):
    source = source_named(name, History([run()]))
    assert type(source) is kind
    assert source.name == name.strip()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "none-such",
        "hybrid:2",
        "noisy:hybrid",
        "noisy:much:hybrid",
        "noisy:-1:hybrid",
        "noisy:nan:hybrid",
        "noisy:0.1",
        "stale:hybrid",
        "stale:-3:hybrid",
        "partial:hybrid",
        "partial:colour:hybrid",
        "cached",
        "cached:none-such",
    ],
)
def test_a_wrong_name_is_refused_on_one_line(name):
    with pytest.raises(InvalidInput) as caught:
        source_named(name, History.empty())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "noisy:0.2:history",
        "noisy:0.2:-0.1:history",
        "stale:5:history",
        "stale:3600s:history",
        "partial:validity+software:cached:nearest",
    ],
)
def test_the_name_of_a_composed_source_makes_it_again(name):
    source = source_named(name, synthetic_history())
    assert source.name == name
    assert source_named(source.name, synthetic_history()).version == source.version


class Registered:
    name = "mine"
    value = "package:factory"

    def __init__(self, made):
        self._made = made

    def load(self):
        return self._made


def test_a_source_of_another_package_is_made_with_history_and_texts(monkeypatch):
    def factory(history, count):
        return NearestSource(history, count=int(count))

    monkeypatch.setattr(metadata, "entry_points", lambda **_: [Registered(factory)])
    source = source_named("mine:3", History([run()]))
    assert (source.count, len(source.history)) == (3, 1)
    assert source_named("cached:mine:3", History([run()])).name == "cached:nearest"
    assert "mine" in [listed.name for listed in sources_listed()]
    with pytest.raises(InvalidInput, match="package:factory"):
        source_named("mine:three", History.empty())
    wrong = Registered(lambda _history: 1)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [wrong])
    with pytest.raises(InvalidInput, match="source of knowledge"):
        source_named("mine", History.empty())
    assert SOURCE_GROUP == "duetune.knowledge_sources"


def test_a_model_and_a_gpu_are_known_by_any_of_their_names(tmp_path):
    source = HistorySource(History([run()]))
    named = POINT.replace(model="llama3.1-8b", gpu_model="NVIDIA-A100-SXM4-80GB")
    assert asked(source, named).measured
    source.observe(run(named.replace(lora_rank=3)))
    assert asked(source, POINT.replace(lora_rank=3)).measured
    again = HistorySource(History([run(named)]))
    assert asked(again, POINT).measured
    assert again.version == HistorySource(History([run()])).version
    folder = tmp_path / "llama3.1-8b"
    folder.mkdir()
    assert not asked(source, named.replace(model=str(folder))).measured


def test_a_space_with_other_gpus_than_were_measured_is_answered():
    space = small_space().with_values("gpu_model", ("H100", "B200"))
    assert space.domains["gpu_model"] == Domain(("H100", "B200"))
    ranking = NearestSource(synthetic_history()).complete(
        JOB, space, Objective.FASTEST, Limits(min_p_valid=0.0)
    )
    assert all("gpu_model" in each.estimate.extrapolated for each in ranking.candidates)


@pytest.mark.parametrize(
    ("field", "word"),
    [("method", "nope"), ("precision", "int3"), ("sharding", "some"), ("optimiser", "adan")],
)
def test_words_that_no_configuration_has_are_refused(field, word):
    rows = Configurations.grid({"model": [POINT.model], "gpu_model": ["L4"], field: [word]})
    for source in (AnalyticSource(), NearestSource(History([run()]))):
        with pytest.raises(InvalidInput, match=rf"^{field}: '{word}'"):
            source.query(rows)


@pytest.mark.parametrize("name", ["analytic", "regression", "hybrid"])
@pytest.mark.parametrize("field", ["model", "gpu_model"])
def test_of_what_nobody_has_described_one_cannot_know_whether_it_fits(name, field):
    source = source_named(name, History([]))
    known = Configuration(model="HuggingFaceTB/SmolLM2-135M", gpu_model="H200", batch_size=1)
    sure, unsure = source.query(
        Configurations.of([known, known.replace(**{field: "nobody/knows"})])
    ).p_valid
    assert sure > 0.9
    assert unsure == 0.5
