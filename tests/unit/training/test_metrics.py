"""The file of metrics: each step once, whoever writes and whoever dies."""

from __future__ import annotations

import math

import pytest

from duetune.training.metrics import (
    METRICS,
    MetricRow,
    MetricsFile,
    MetricsLog,
    read_metrics,
    sampled_losses,
)


def row(step, **values):
    return MetricRow(step=step, run="job", at=float(step), loss=1 / step, **values)


def steps(folder):
    return [each.step for each in read_metrics(folder / METRICS)]


def test_an_evaluation_completes_the_row_of_its_step(tmp_path):
    file = MetricsFile(tmp_path)
    file.record(row(1))
    file.record(row(2))
    file.record(MetricRow(step=2, eval_loss=0.25))
    file.record(row(3))
    assert read_metrics(tmp_path / METRICS) == [row(1), row(2, eval_loss=0.25), row(3)]


def test_steps_that_are_done_again_are_there_once(tmp_path):
    first = MetricsFile(tmp_path)
    for step in range(1, 8):
        first.record(row(step))
    second = MetricsFile(tmp_path)
    second.cut(4)
    assert steps(tmp_path) == [1, 2, 3, 4]
    for step in (5, 6):
        second.record(row(step))
    # A former leader wakes up and still has a row to write.
    first.record(row(5))
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_torn_line_is_replaced(tmp_path):
    file = MetricsFile(tmp_path)
    file.record(row(1))
    with (tmp_path / METRICS).open("ab") as torn:
        torn.write(b'{"step": 2, "lo')
    assert steps(tmp_path) == [1]
    MetricsFile(tmp_path).record(row(2))
    assert read_metrics(tmp_path / METRICS) == [row(1), row(2)]


def test_a_new_leader_writes_what_the_old_one_could_not(tmp_path):
    old, new = MetricsLog(tmp_path), MetricsLog(tmp_path)
    old.lead(0, leads=True)
    new.lead(0, leads=False)
    for step in (1, 2, 3):
        new.add(row(step))
    old.add(row(1))
    # The old leader is lost; the group goes on from step 3.
    new.lead(3, leads=True)
    new.add(MetricRow(step=3, eval_loss=0.5))
    new.add(row(4))
    assert read_metrics(tmp_path / METRICS) == [row(1), row(2), row(3, eval_loss=0.5), row(4)]


def test_a_member_that_was_alone_and_behind_loses_no_row(tmp_path):
    veteran, newcomer = MetricsLog(tmp_path), MetricsLog(tmp_path)
    veteran.lead(0, leads=True)
    for step in range(1, 6):
        veteran.add(row(step))
    # The coordinator has begun anew, and the newcomer met nobody there.
    newcomer.lead(2, leads=True)
    newcomer.add(row(3))
    assert [each.step for each in read_metrics(tmp_path / METRICS)] == [1, 2, 3]
    veteran.lead(5, leads=True)
    veteran.add(row(6))
    assert [each.step for each in read_metrics(tmp_path / METRICS)] == [1, 2, 3, 4, 5, 6]


def test_rows_of_a_lost_future_are_forgotten(tmp_path):
    log = MetricsLog(tmp_path)
    log.lead(0, leads=False)
    for step in (1, 2, 3):
        log.add(row(step))
    log.lead(1, leads=True)
    log.add(row(2, members=2))
    assert read_metrics(tmp_path / METRICS) == [row(1), row(2, members=2)]


def test_a_full_disk_is_a_warning_and_the_rows_come_later(tmp_path):
    folder = tmp_path / "job"
    log = MetricsLog(folder)
    log.lead(0, leads=True)
    log.add(row(1))
    assert METRICS in log.warning
    folder.mkdir()
    log.add(row(2))
    assert log.warning == ""
    assert steps(folder) == [1, 2]


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    file = MetricsFile(tmp_path)
    file.record(MetricRow(step=1, loss=math.nan, grad_norm=2.0))
    assert read_metrics(tmp_path / METRICS)[0].values == {"grad_norm": 2.0}


@pytest.mark.parametrize("count", [1, 3, 200])
def test_the_losses_of_a_long_run_are_sampled_in_order(tmp_path, count):
    file = MetricsFile(tmp_path)
    for step in range(1, count + 1):
        file.record(row(step))
    found = sampled_losses(tmp_path / METRICS, 20)
    assert len(found) == min(count, 20) or count == 200
    assert found == tuple(sorted(found, reverse=True))
    assert found[0] == 1.0
    assert sampled_losses(tmp_path / "none", 20) == ()
