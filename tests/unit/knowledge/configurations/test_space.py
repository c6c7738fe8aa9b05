from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_rules import Constraint, broken
from duetune.knowledge.configurations.space import Domain, Role, Space
from duetune.knowledge.configurations.space_files import default_space, read_space
from duetune.knowledge.configurations.space_sampling import sample
from duetune.knowledge.facts.model_registry import registered

JOB = {"model": "llama3.1-8b", "tokens_per_sample": 4096}


def small(**domains):
    usual = {"model": Domain(("llama3.1-8b",)), "gpu_model": Domain(("A100-80GB", "L40S"))}
    constraint = Constraint('(num_gpus == 1) == (sharding == "none")')
    gpus = {"num_gpus": Domain((1, 2, 4)), "sharding": Domain(("none", "fsdp"), Role.FIXED)}
    return Space({**usual, **gpus, **domains}, (constraint,))


def test_the_shipped_space_is_what_a_scheduler_may_choose():
    space = default_space()
    assert space.free == ("gpu_model", "num_gpus", "batch_size", "sharding", "grad_checkpoint")
    assert space.missing == ("model",)
    job = space.given(JOB)
    assert not job.missing
    points = list(job.points())
    assert len(points) == job.cardinality == space.cardinality == 1120
    assert {point.tokens_per_sample for point in points} == {4096}
    assert {point.num_nodes for point in points} == {1}
    assert all((point.num_gpus == 1) == (point.sharding == "none") for point in points)


def test_more_gpus_than_a_node_has_are_whole_nodes():
    points = list(default_space().given({**JOB, "num_gpus": 16}).points())
    assert points
    assert {point.num_nodes for point in points} == {2}


def test_the_poster_space_has_its_seven_parameters_and_about_72000_points():
    space = read_space("poster")
    assert set(space.free) == {
        *("model", "method", "gpu_model", "num_gpus", "batch_size", "tokens_per_sample"),
        "software",
    }
    assert 65_000 <= space.cardinality <= 80_000
    assert sum(len(part) for part in space.enumerate()) == space.cardinality
    assert all(registered(str(model)) for model in space.values["model"])


def test_cardinality_counts_what_constraints_leave_without_going_through_all():
    vast = small(
        batch_size=Domain(tuple(range(1, 1001))),
        tokens_per_sample=Domain(tuple(range(1, 1001))),
        lora_rank=Domain(tuple(range(1, 1001))),
    )
    assert vast.combinations == 2 * 3 * 2 * 10**9
    assert vast.cardinality == 2 * 3 * 10**9
    first = next(vast.enumerate(chunk=10))
    assert len(first) == 10


def test_constraints_that_share_a_field_are_counted_together():
    space = Space(
        {**small().domains, "batch_size": Domain((1, 2, 4, 8))},
        (
            *small().constraints,
            Constraint("batch_size % num_gpus == 0"),
            Constraint('gpu_model == "L40S" or lora_rank < 9'),
        ),
    )
    assert space.cardinality == len(list(space.points())) == 2 * (4 + 3 + 2)


def test_chunks_are_the_whole_in_order():
    space = small(batch_size=Domain((1, 2, 3)))
    whole = list(space.points())
    assert [row for part in space.enumerate(chunk=5) for row in part] == whole
    assert len({row.key for row in whole}) == len(whole) == space.cardinality


def test_rules_do_not_make_a_space_smaller():
    space = small(batch_size=Domain((3,)))
    points = space.points()
    assert {row.num_gpus for row in points} == {1, 2, 4}
    assert space.allowed(points).tolist() == (broken(points) < 0).tolist()
    assert {row.num_gpus for row in points.take(space.allowed(points))} == {1}


def test_a_given_value_stands_also_outside_of_the_domain():
    space = small().given({"gpu_model": "nvidia-h100-80gb-hbm3", "method": "full"})
    assert space.domains["method"] == Domain(("full",), Role.GIVEN)
    assert space.free == ("num_gpus",)
    assert {row.method.value for row in space.points()} == {"full"}
    assert small().given({"gpu_model": "NVIDIA-L40S"}).values["gpu_model"] == ("L40S",)


def test_what_is_fixed_is_not_for_the_user_to_say():
    space = small(optimiser=Domain(("adamw",), Role.FIXED))
    assert space.given({"optimiser": "adamw"}).cardinality == space.cardinality
    with pytest.raises(InvalidInput, match=r"optimiser.*adamw, which is fixed"):
        space.given({"optimiser": "sgd"})


@pytest.mark.parametrize(
    ("partial", "told"),
    [
        ({"batchsize": 4}, "batch_size"),
        ({"gpu": "L40S"}, "gpu_model"),
        ({"method": "loraa"}, "full, lora"),
        ({"num_gpus": "four"}, "whole number"),
        ({"num_gpus": 0}, "one or more"),
        ({"num_gpus": 2.5}, "whole number"),
        ({"num_gpus": True}, "whole number"),
        ({"grad_checkpoint": 1}, "true or false"),
        ({"memory_cap_gb": -1}, "zero or more"),
        ({"memory_cap_gb": float("nan")}, "zero or more"),
        ({"model": None}, "a word"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_can(partial, told):
    with pytest.raises(InvalidInput) as caught:
        default_space().given(partial)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "domains",
    [
        {"colour": Domain(("red",))},
        {"num_gpus": Domain(())},
        {"num_gpus": Domain((1, 1))},
        {"num_gpus": Domain((1, 2), Role.GIVEN)},
        {"method": Domain(("fulll",))},
        {"gpu_model": Domain(("nvidia-l40s",))},
        {field: Domain(tuple(range(1, 2000))) for field in ("batch_size", "lora_rank", "num_gpus")}
        | {field: Domain(tuple(range(1, 2**17))) for field in ("grad_accum", "tokens_per_sample")},
    ],
)
def test_a_space_that_makes_no_sense_is_refused(domains):
    with pytest.raises(InvalidInput):
        Space(domains)


def test_without_a_model_there_are_no_points():
    with pytest.raises(InvalidInput, match="model"):
        default_space().points()


def test_a_space_contains_its_points_and_no_others():
    space = small()
    points = list(space.points())
    assert all(space.contains(row) for row in points)
    assert not space.contains(points[0].replace(lora_rank=9))
    assert not space.contains(points[0].replace(sharding="fsdp"))


@pytest.mark.parametrize("method", ["random", "latin-hypercube"])
def test_a_sample_is_distinct_allowed_and_the_same_for_the_same_seed(method):
    space = default_space().given(JOB)
    drawn = sample(space, 200, np.random.default_rng(3), method)
    assert len({row.key for row in drawn}) == 200
    assert space.allowed(drawn).all()
    assert all(space.contains(row) for row in drawn)
    again = sample(space, 200, np.random.default_rng(3), method)
    assert list(drawn) == list(again)
    assert list(drawn) != list(sample(space, 200, np.random.default_rng(4), method))


def test_a_latin_hypercube_has_every_value_equally_often():
    space = read_space("poster")
    drawn = sample(space, 120, np.random.default_rng(0), "latin-hypercube")
    for field in space.free:
        counts = Counter(drawn.columns[field].tolist())
        size = len(space.values[field])
        assert len(counts) == size
        assert max(counts.values()) - min(counts.values()) <= 1, field


@pytest.mark.parametrize("method", ["random", "latin-hypercube"])
def test_all_that_is_allowed_can_be_drawn_and_no_more(method):
    space = small(batch_size=Domain((1, 2, 4)))
    allowed = int(space.allowed(space.points()).sum())
    drawn = sample(space, allowed, np.random.default_rng(0), method)
    assert {row.key for row in drawn} == {
        row.key for row in space.points().take(space.allowed(space.points()))
    }
    with pytest.raises(InvalidInput, match=f"at most {allowed}"):
        sample(space, allowed + 1, np.random.default_rng(0), method)
    assert len(sample(space, 0, np.random.default_rng(0), method)) == 0


def test_a_vast_space_is_drawn_from_without_going_through_it():
    vast = small(
        batch_size=Domain(tuple(range(1, 1001))), tokens_per_sample=Domain(tuple(range(1, 3001)))
    )
    drawn = sample(vast, 500, np.random.default_rng(0))
    assert len({row.key for row in drawn}) == 500
    assert vast.allowed(drawn).all()


@pytest.mark.parametrize(("count", "method"), [(5, "sobol"), (-1, "random")])
def test_a_sample_that_cannot_be_drawn_is_refused(count, method):
    with pytest.raises(InvalidInput):
        sample(small(), count, np.random.default_rng(0), method)


def test_a_space_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "fields:\n"
        "  model: {values: [llama3.1-8b]}\n"
        "  gpu_model: {values: [NVIDIA-L40S]}\n"
        "  num_gpus: {range: [2, 12]}\n"
        "  sharding: {role: fixed, values: [fsdp]}\n"
        "  grad_checkpoint: {values: [true, false]}\n"
        "constraints:\n"
        "  - {expression: num_gpus < 8, meaning: small jobs}\n"
    )
    space = read_space(path)
    assert space.values["num_gpus"] == (2, 4, 8)
    assert space.domains["sharding"].role is Role.FIXED
    assert space.cardinality == 4
    assert read_space(str(path)) == space


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fields: [", "YAML"),
        ("- 1", "fields"),
        ("fields: {num_gpus: {values: [1], rolle: free}}", "rolle"),
        ("fields: {num_gpus: {role: wild, values: [1]}}", "role"),
        ("fields: {num_gpu: {values: [1]}}", "num_gpus"),
        ("fields: {num_gpus: {range: [8, 1]}}", "range"),
        ("fields: {num_gpus: {range: [1, 8], values: [1]}}", "range"),
        ("fields: {num_gpus: {values: [one]}}", "whole number"),
        (
            "fields: {num_gpus: {values: [1]}}\nconstraints: [{expression: num_gpus >}]",
            "num_gpus >",
        ),
    ],
)
def test_a_file_that_is_no_space_is_refused_on_one_line(tmp_path, text, told):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_space(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["none-such", "none/such.yaml"])
def test_a_space_that_is_not_there_is_told(place):
    with pytest.raises(InvalidInput, match="space"):
        read_space(place)


def test_points_of_a_space_that_allows_nothing():
    nothing = Space(small().domains, (Constraint("num_gpus > 100"),))
    assert nothing.cardinality == 0
    assert len(nothing.points()) == 0
    assert isinstance(nothing.points(), Configurations)
