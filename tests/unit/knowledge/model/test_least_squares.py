from __future__ import annotations

import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.model.least_squares import APART, Usual, Vector, grouped, product

ONE = Configuration(model="a", gpu_model="L40S")
ROWS = Configurations.of(
    [
        ONE,
        ONE.replace(gpu_model="A100-80GB", software="trl | 1.0", method="full"),
        ONE.replace(num_gpus=2, sharding="fsdp"),
        ONE.replace(gpu_model="A100-80GB", method="lora", grad_checkpoint=False),
    ]
)


def test_rows_are_grouped_by_word():
    (group,) = grouped(ROWS, {"gpu_model": 0.3})
    assert [group.keys[code] for code in group.codes] == [
        "gpu_model=L40S",
        "gpu_model=A100-80GB",
        "gpu_model=L40S",
        "gpu_model=A100-80GB",
    ]
    assert group.spread == 0.3


def joined(*words):
    return f"method, gpu_model, num_gpus={APART.join(words)}"


def test_rows_are_grouped_by_several_fields_and_by_numbers():
    both, number = grouped(ROWS, {"method, gpu_model, num_gpus": 0.1, "grad_checkpoint": 0.2})
    assert [both.keys[code] for code in both.codes] == [
        joined("lora", "L40S", "1"),
        joined("full", "A100-80GB", "1"),
        joined("lora", "L40S", "2"),
        joined("lora", "A100-80GB", "1"),
    ]
    assert [number.keys[code] for code in number.codes] == [
        *["grad_checkpoint=1"] * 3,
        "grad_checkpoint=0",
    ]


def test_labels_that_no_row_has_make_no_group():
    part = ROWS.take(np.array([0, 2]))
    (group,) = grouped(part, {"gpu_model": 0.3})
    assert {group.keys[code] for code in group.codes} == {"gpu_model=L40S"}


def test_groups_of_nothing_are_empty():
    none = Configurations.of([])
    (group,) = grouped(none, {"gpu_model, method": 0.3})
    assert (group.keys, len(group.codes)) == ([], 0)
    assert len(product(none, {"gpu_model": 0.3}, {"gpu_model=L40S": 2.0})) == 0


def test_more_combinations_than_fit_in_an_array_are_still_told_apart():
    many = Configurations.of(
        [ONE.replace(batch_size=n, tokens_per_sample=n, lora_rank=n) for n in range(1, 301)]
    )
    (group,) = grouped(many, {"batch_size, tokens_per_sample, lora_rank, grad_accum": 0.1})
    assert len(set(group.keys)) == len(set(group.codes.tolist())) == 300


def test_factors_multiply_and_the_unseen_are_one():
    learnt = {"gpu_model=L40S": 2.0, "method=lora": 3.0, "method=qlora": 100.0}
    told = product(ROWS, {"gpu_model": 0.3, "method": 0.1}, learnt)
    assert told.tolist() == [6.0, 1.0, 6.0, 3.0]


def vector(rows=ROWS):
    return Vector(
        {"scale": Usual(4.0, 1.0), "unused": Usual(7.0, 0.5)},
        {
            "speed": grouped(rows, {"gpu_model": 0.3, "method": 0.2}),
            "size": grouped(rows, {"software": 0.1}),
        },
    )


def test_zero_is_usual():
    zeros = np.zeros(len(vector().spreads))
    assert vector().constants(zeros) == {"scale": 4.0, "unused": 7.0}
    assert all((column == 1.0).all() for column in vector().factors(zeros).values())


def test_a_vector_and_its_names_are_the_same_thing():
    values = np.random.default_rng(0).normal(size=len(vector().spreads))
    again = vector().values(vector().constants(values), vector().named(values))
    assert again == pytest.approx(values)
    named = vector().named(values)
    by_row = vector().factors(values)
    assert by_row["speed"] == pytest.approx(
        product(ROWS, {"gpu_model": 0.3, "method": 0.2}, named["speed"])
    )
    assert by_row["size"] == pytest.approx(product(ROWS, {"software": 0.1}, named["size"]))


def test_spreads_are_those_of_constants_and_then_of_each_label():
    assert vector().spreads.tolist() == [1.0, 0.5, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1]


def logs(constants, factors):
    """The vector's part that an error is made of: two constants, and the speed of each row."""
    return (
        np.log(constants["scale"] / 4.0),
        np.log(constants["unused"] / 7.0),
        np.log(factors["speed"]),
    )


def many(count):
    return Configurations.of([*ROWS] * count)


def test_a_constant_goes_where_the_data_are_and_others_stay_usual():
    rows = many(10)
    found = vector(rows).fit(lambda *given: np.full(40, logs(*given)[0] - 0.7), 0.1)
    assert found[0] == pytest.approx(0.7, abs=0.01)
    assert found[1:] == pytest.approx(np.zeros(len(found) - 1), abs=1e-6)


def test_a_few_rows_move_a_constant_less_than_many():
    few, more = (
        vector(many(count)).fit(lambda *given, n=count: np.full(4 * n, logs(*given)[1] - 0.2), 0.1)
        for count in (1, 20)
    )
    assert 0.05 < few[1] < more[1] < 0.2 + 1e-6


def test_errors_that_are_far_off_do_not_drag_a_constant_along():
    random = np.random.default_rng(1)
    noise = 0.05 * random.standard_normal(100)
    noise[:10] += 3.0

    found = vector(many(25)).fit(lambda *given: logs(*given)[0] - 0.7 - noise, 0.1)[0]
    mean = 0.7 + float(noise.mean())
    assert abs(found - 0.7) < 0.05 < abs(mean - 0.7)


def test_the_slopes_of_labels_lead_to_the_factors_that_made_the_data():
    """Errors that are not linear, so that a wrong slope would not end at the answer."""
    rows = many(50)
    true = np.array([0.3, 0.0, 0.2, -0.2, 0.1, -0.1, 0.0, 0.0])
    here = vector(rows)
    seconds = 1.0 / here.factors(true)["speed"] + here.constants(true)["scale"]

    def error(constants, factors):
        return np.log((1.0 / factors["speed"] + constants["scale"]) / seconds)

    found = here.fit(error, 0.001)
    assert np.abs(error(here.constants(found), here.factors(found))).max() < 1e-3


def test_a_search_that_starts_near_the_answer_ends_there_too():
    def error(*given):
        scale, _, speed = logs(*given)
        return scale - 0.7 + 2.0 * (speed - np.tile([0.1, -0.2, 0.1, -0.2], 10))

    first = vector(many(10)).fit(error, 0.1)
    again = vector(many(10)).fit(error, 0.1, start=first + 0.02)
    assert again == pytest.approx(first, abs=0.01)
