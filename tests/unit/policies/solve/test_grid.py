from __future__ import annotations

import pytest

from duetune.core.job import Job, Reconfiguration, linear_throughput
from duetune.core.physics import job_physics
from duetune.errors import InvalidInput
from duetune.policies.solve.bellman import steps_left
from duetune.policies.solve.progress_grid import GROW, SHRINK, STAY, exact_unit, progress_grid
from duetune.policies.window_plan import PLANNING_STEPS, planning_grid

FREE = Reconfiguration(1.0, 1.0, 1.0)


def job(work: float = 10.0, **fields: object) -> Job:
    defaults = {"deadline": 5, "value": 9.0, "throughput": linear_throughput(4)}
    return Job(work=work, **{**defaults, **fields})


def test_the_unit_divides_all_that_a_slot_can_do():
    assert exact_unit(job()) == pytest.approx(0.05)
    assert exact_unit(job(reconfiguration=FREE)) == pytest.approx(1.0)
    assert exact_unit(job(throughput=(0.0, 1.5, 2.25), reconfiguration=FREE)) == pytest.approx(0.75)


def test_an_exact_grid_counts_what_the_physics_does():
    grid = progress_grid(job(), 1000)
    assert grid.exact
    assert grid.steps == 200
    assert grid.strides[STAY].tolist() == [0, 20, 40, 60, 80]
    assert grid.strides[GROW].tolist() == [0, 18, 36, 54, 72]
    assert grid.strides[SHRINK].tolist() == [0, 19, 38, 57, 76]


def test_a_coarse_grid_never_overstates_progress():
    grid = progress_grid(job(), 7)
    assert not grid.exact
    assert grid.steps == 7
    assert (grid.strides * grid.unit <= [[0, 1, 2, 3, 4]]).all()


def test_an_optimistic_grid_never_understates_it():
    grid = progress_grid(job(), 7, optimistic=True)
    physics = job_physics(job())
    assert (grid.strides[STAY] * grid.unit >= physics.throughput - 1e-9).all()
    assert (grid.strides[GROW] * grid.unit >= 0.9 * physics.throughput - 1e-9).all()


def test_work_that_is_no_multiple_of_the_unit_is_rounded_up():
    grid = progress_grid(job(work=3.5, reconfiguration=FREE), 100)
    assert (grid.exact, grid.steps) == (True, 4)


def test_steps_left_are_rounded_up_and_zero_only_when_done():
    grid, physics = progress_grid(job(), 1000), job_physics(job())
    assert steps_left(physics, grid, 0.0) == 200
    assert steps_left(physics, grid, 9.96) == 1
    assert steps_left(physics, grid, 9.94) == 2
    assert steps_left(physics, grid, 10.0) == 0
    assert steps_left(physics, grid, 11.0) == 0
    assert steps_left(physics, grid, sum([0.1] * 50)) == 100


def test_below_the_minimum_no_progress_is_counted():
    assert progress_grid(job(min_gpus=3), 1000).strides[STAY].tolist() == [0, 0, 0, 60, 80]


@pytest.mark.parametrize("steps", [0, -1])
def test_a_grid_needs_a_step(steps):
    with pytest.raises(InvalidInput, match="max_steps"):
        progress_grid(job(), steps)


def test_thirds_are_exact_too():
    thirds = job(work=2.0, throughput=(0.0, 1 / 3, 2 / 3), reconfiguration=FREE)
    grid = progress_grid(thirds, 100)
    assert (grid.exact, grid.steps) == (True, 6)


@pytest.mark.parametrize("hair", [2e-9, 1e-8, 3e-8])
def test_a_hair_of_work_is_a_step_of_work(hair):
    hairy = job(work=3 * (1 + hair), throughput=(0.0, 1.0), reconfiguration=FREE)
    assert progress_grid(hairy, 100).steps == 4


def test_policies_plan_work_without_a_change_in_whole_steps():
    """The specified grid has 7,168 steps here; equal steps lost work in every slot."""
    large = job(work=358.4, deadline=32, throughput=linear_throughput(16))
    grid = planning_grid(large)
    assert not grid.exact
    assert grid.steps <= PLANNING_STEPS
    assert (grid.unit * grid.strides[STAY]).tolist() == pytest.approx(list(large.throughput))


def test_the_specified_grid_is_used_as_far_as_it_is_asked_for():
    large = job(work=358.4, deadline=32, throughput=linear_throughput(16))
    assert planning_grid(large, 8192).exact
    assert planning_grid(large, 8192).unit == pytest.approx(0.05)
    assert planning_grid(job()).exact
