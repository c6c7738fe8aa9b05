"""Two rounds of Sia, worked out by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.core.planning import JobView, Partition, Stock
from duetune.errors import InvalidInput
from duetune.planners.sia import Sia, normalised, reachable, restart_factor


def stock_of(*sizes):
    return Stock(
        tuple(
            Partition(name=f"p{n}", gpu_model="A100-80GB", nodes=nodes, gpus_per_node=gpus)
            for n, (nodes, gpus) in enumerate(sizes)
        )
    )


def view(name, *pace, **fields):
    values = {"remaining": 1e6, "restart_s": 60.0, "start_s": 60.0}
    return JobView(name=name, pace=np.array(pace, float), **(values | fields))


class TestHomogeneous:
    """One node of four GPUs: shapes of 1, 2 and 4."""

    stock = stock_of((1, 4))
    waits = view("waits", 100, 180, 300)
    runs = view("runs", 50, 90, 140, held=1, age_s=600.0, restarts=1)

    def test_a_job_that_waits_may_have_one_gpu(self):
        # Its slowest pace is 1; 1 ** -0.5 = 1.00; to have none costs 1.1.
        costs = Sia().costs(self.waits, self.stock)
        assert costs == pytest.approx([1.00 - 1.1, np.inf, np.inf])

    def test_a_job_that_runs_is_discounted_where_it_would_restart(self):
        # Goodput 1, 1.8, 2.8; r = (600 - 60) / (600 + 60) = 0.818 but for what it has:
        # 0.818 ** -0.5 = 1.11, 1.8 ** -0.5 = 0.75, 2.291 ** -0.5 = 0.66.
        assert restart_factor(self.runs) == pytest.approx(540 / 660)
        costs = Sia().costs(self.runs, self.stock)
        assert costs == pytest.approx([1.11 - 1.1, 0.75 - 1.1, 0.66 - 1.1])

    def test_the_optimum_shares_the_node(self):
        # All four for the one that runs is -0.44; two for it and one for the other -0.45.
        plan = Sia().plan([self.waits, self.runs], self.stock)
        assert plan.shapes == {"waits": 0, "runs": 1}

    def test_without_a_restart_to_pay_the_one_that_runs_would_have_it_all(self):
        # 2.8 ** -0.5 = 0.60, so -0.50.
        free = msgspec.structs.replace(self.runs, restarts=0, age_s=30.0)
        assert Sia().plan([self.waits, free], self.stock).shapes == {"runs": 2}

    def test_a_larger_incentive_serves_more_jobs(self):
        # With lambda 1.3 the other one's share is worth -0.30, and -0.70 all four.
        free = msgspec.structs.replace(self.runs, restarts=0, age_s=30.0)
        plan = Sia(incentive=1.3).plan([self.waits, free], self.stock)
        assert plan.shapes == {"waits": 0, "runs": 1}

    def test_a_positive_power_counts_goodput_as_a_gain(self):
        # 1, 1.8 ** 0.5 = 1.34, 2.8 ** 0.5 = 1.67; each less 1.1 for having none.
        free = msgspec.structs.replace(self.runs, restarts=0, age_s=30.0)
        costs = Sia(power=0.5).costs(free, self.stock)
        assert costs == pytest.approx([-1.00 - 1.1, -1.34 - 1.1, -1.67 - 1.1])


class TestHeterogeneous:
    """Two fast GPUs and two slow ones: shapes 1 and 2 of either."""

    stock = stock_of((1, 2), (1, 2))
    one = view("one", 200, 380, 100, 190)
    two = view("two", 200, 380, 100, 190)
    other = view("other", 120, 230, 100, 195)

    def test_a_row_is_in_units_of_its_slowest(self):
        assert normalised(self.one, self.stock) == pytest.approx([2.0, 3.8, 1.0, 1.9])
        large = view("large", 0, 300, 0, 200)
        assert normalised(large, self.stock) == pytest.approx([0.0, 3.0, 0.0, 2.0])

    def test_who_gains_most_gets_the_fast_ones(self):
        # Fast: 2 ** -0.5 = 0.71, so -0.39, for the first two and 0.91, so -0.19, for the other;
        # slow: 1.00, so -0.10, for all. The first two on fast ones and the other on a slow one
        # is -0.88; the other on a fast one instead of one of them -0.68.
        costs = Sia().costs(self.other, self.stock)
        assert costs == pytest.approx([0.91 - 1.1, np.inf, 1.00 - 1.1, np.inf])
        plan = Sia().plan([self.other, self.one, self.two], self.stock)
        assert plan.shapes == {"one": 0, "two": 0, "other": 2}

    def test_with_room_for_all_everybody_has_a_fast_one(self):
        assert Sia().plan([self.other, self.one], self.stock).shapes == {"one": 0, "other": 0}


def test_a_job_at_most_doubles_in_a_round():
    stock = stock_of((2, 8), (1, 2))
    runs = view("runs", *range(1, 8), held=1)
    assert [s.gpus for s in stock.shapes] == [1, 2, 4, 8, 16, 1, 2]
    assert reachable(runs, stock, 2.0).tolist() == [True, True, True, False, False, True, True]
    assert not reachable(msgspec.structs.replace(runs, held=-1), stock, 2.0)[1]


def test_a_job_that_cannot_run_on_few_starts_with_the_fewest_it_can():
    stock = stock_of((2, 4))
    large = view("large", 0, 0, 0, 100)
    assert Sia().plan([large], stock).shapes == {"large": 3}


def test_one_that_is_busy_stays_where_it_is():
    stock = stock_of((1, 4))
    busy = view("busy", 100, 180, 300, held=0, busy=True, age_s=1000.0)
    assert reachable(busy, stock, 2.0).tolist() == [True, False, False]


def test_one_that_restarted_all_its_life_waits():
    tired = view("tired", 100.0, held=-1, age_s=240.0, restarts=4)
    assert restart_factor(tired) == 0.0
    assert Sia().plan([tired], stock_of((1, 1))).shapes == {}


@pytest.mark.parametrize(
    ("fields", "words"), [({"power": 0.0}, "power"), ({"scale_up": 1.0}, "scale_up")]
)
def test_what_makes_no_sense_is_refused(fields, words):
    with pytest.raises(InvalidInput, match=words):
        Sia(**fields)
