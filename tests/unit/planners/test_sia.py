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
        able = self.one.pace > 0
        assert normalised(self.one, self.stock, able) == pytest.approx([2.0, 3.8, 1.0, 1.9])
        large = view("large", 0, 300, 0, 200)
        got = normalised(large, self.stock, large.pace > 0)
        assert got == pytest.approx([0.0, 3.0, 0.0, 2.0])

    def test_the_slowest_is_that_of_the_shapes_it_may_have(self):
        # Two slow GPUs are slower than one, but a job that never ran may not have two.
        odd = view("odd", 200, 380, 100, 50)
        assert Sia().costs(odd, self.stock) == pytest.approx([0.71 - 1.1, np.inf, -0.1, np.inf])

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


def test_a_job_has_at_most_twice_the_gpus_it_has_ever_run_with():
    stock = stock_of((2, 8), (1, 2))
    runs = view("runs", *range(1, 8), held=1, most_gpus=2)
    assert [s.gpus for s in stock.shapes] == [1, 2, 4, 8, 16, 1, 2]
    assert reachable(runs, stock, 2.0).tolist() == [True, True, True, False, False, True, True]
    waits = msgspec.structs.replace(runs, held=-1)
    assert reachable(waits, stock, 2.0).tolist() == reachable(runs, stock, 2.0).tolist()
    shrunk = msgspec.structs.replace(runs, held=0, most_gpus=8)
    assert reachable(shrunk, stock, 2.0).all()
    new = msgspec.structs.replace(waits, most_gpus=0)
    assert reachable(new, stock, 2.0).tolist() == [True, *[False] * 4, True, False]


def test_a_job_that_cannot_run_on_few_starts_with_the_fewest_it_can():
    stock = stock_of((2, 4))
    large = view("large", 0, 0, 0, 100)
    assert Sia().plan([large], stock).shapes == {"large": 3}


def test_one_that_is_busy_stays_where_it_is():
    stock = stock_of((1, 4))
    busy = view("busy", 100, 180, 300, held=0, busy=True, age_s=1000.0)
    assert reachable(busy, stock, 2.0).tolist() == [True, False, False]


def test_a_waiting_job_is_never_discounted():
    tired = view("tired", 100.0, age_s=240.0, restarts=4)
    assert restart_factor(tired) == 1.0
    assert Sia().plan([tired], stock_of((1, 1))).shapes == {"tired": 0}
    assert restart_factor(msgspec.structs.replace(tired, held=0)) == 0.0


def test_a_waiting_job_gets_an_empty_cluster_at_any_age():
    # Two digits: 1 / sqrt(r) exceeds 1.1 until a job is 5.8 restarts old.
    for age_s in (0.0, 250.0, 600.0, 1400.0, 1e5):
        waits = view("waits", 100, 180, age_s=age_s, restart_s=250.0)
        assert Sia().plan([waits], stock_of((1, 2))).shapes == {"waits": 0}


def test_for_a_rigid_job_attained_gpu_seconds_count_instead_of_age():
    old = view("old", 100.0, held=0, age_s=600.0, restarts=1)
    assert restart_factor(old) == pytest.approx(540 / 660)
    rigid = msgspec.structs.replace(old, rigid=True)
    assert restart_factor(rigid) == 1.0
    worked = msgspec.structs.replace(rigid, attained_gpu_s=61.0)
    assert restart_factor(worked) == pytest.approx(540 / 660)


@pytest.mark.parametrize(
    ("fields", "words"), [({"power": 0.0}, "power"), ({"scale_up": 1.0}, "scale_up")]
)
def test_what_makes_no_sense_is_refused(fields, words):
    with pytest.raises(InvalidInput, match=words):
        Sia(**fields)
