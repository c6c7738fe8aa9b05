"""What a status says about losses."""

from __future__ import annotations

import msgspec
import pytest

from duetune.cli import tables
from duetune.cli.status import panel
from duetune.core.events import Recorded, Status
from duetune.core.fleet import Node, NodeKind, NodeState
from duetune.core.progress import Phase, Progress
from duetune.jobs.status import JobStatus, remaining_s
from duetune.notebook import sparkline
from duetune.simulate.journal_replay import state_of
from duetune.store.rows import JobRow
from duetune.testing.sample_events import submission

ROW = msgspec.convert(
    {
        field.name: {str: "tune", int: 0, float: 0.0, Status: "RUNNING"}[field.type]
        for field in msgspec.structs.fields(JobRow)
        if field.required
    },
    JobRow,
)


def status(**fields):
    return JobStatus(
        job=ROW,
        progress=Progress(step=60, total_steps=100, phase=Phase.TRAINING, **fields),
        nodes=(),
        spent=1.5,
        slot=3,
        deadline_slot=9,
        slot_s=1800.0,
        lost_steps=0,
        resizes=0,
        curve=(4.0, 3.0, 2.0),
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"loss": 2.0}, "2.000 █▅▁"),
        (
            {"loss": 2.0, "eval_loss": 2.5, "best_eval_loss": 2.25, "best_step": 1200},
            "2.000 █▅▁, evaluation 2.500, best 2.250 after step 1,200",
        ),
        (
            {"loss": 2.0, "eval_loss": 2.5, "base_eval_loss": 5.0},
            "2.000 █▅▁, evaluation 5.000 -> 2.500",
        ),
    ],
)
def test_the_losses_are_shown_on_the_screen_and_in_notebooks(fields, words):
    found = status(**fields)
    assert found.loss_text == words
    assert words.replace(">", "&gt;") in found._repr_html_()
    screen = tables.console()
    with screen.capture() as shown:
        screen.print(panel(found))
    assert words in " ".join(shown.get().split())


def test_why_it_ended_early_is_shown():
    words = "stopped early at step 60 of 100: evaluation loss has not improved for 3 evaluations"
    found = status(message=words)
    assert words in found._repr_html_()


def test_a_curve_needs_two_points():
    assert sparkline([]) == sparkline([1.0]) == ""
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_the_gpus_of_nodes_are_counted():
    nodes = [
        Node("a", "tune", NodeKind.SPOT, NodeState.RUNNING, 0.0, gpus=8),
        Node("b", "tune", NodeKind.ON_DEMAND, NodeState.RUNNING, 0.0, gpus=8, notice_at=9.0),
        Node("c", "tune", NodeKind.SPOT, NodeState.REQUESTED, 0.0, gpus=8),
    ]
    found = msgspec.structs.replace(status(), nodes=tuple(nodes))
    assert "8 spot, 8 on-demand on 2 nodes" in found._repr_html_()
    screen = tables.console()
    with screen.capture() as printed:
        screen.print(panel(found))
    words = "8 spot, 8 on demand on 2 nodes, 8 requested, 8 about to be preempted"
    assert words in printed.get()


def test_the_finish_follows_the_time_that_workers_measure_now():
    first = submission()
    state = state_of([Recorded(1, first)], stream="tune")
    told = {"step": 10, "total_steps": 30, "phase": Phase.TRAINING}
    estimated = 20 / first.job.throughput[2] * first.slot_s
    assert remaining_s(state, Progress(**told), 2, 60.0) == pytest.approx(estimated)
    # Half a second of wall time for each of 20 steps; the market runs 60 times faster.
    measured = Progress(**told, world=2, step_s=0.5)
    assert remaining_s(state, measured, 2, 60.0) == pytest.approx(600.0)
    assert remaining_s(state, measured, 3, 60.0) != pytest.approx(600.0)  # other workers
    assert remaining_s(state, measured, 0, 60.0) is None
