from __future__ import annotations

import math

import msgspec
import pytest

from duetune.plots.cluster_figures import cluster_figure, comparison_figure
from duetune.simulate.cluster.cluster_outcome import ClusterOutcome, JobOutcome, RoundRecord
from duetune.simulate.cluster.trial import Setting, compared

JOB = JobOutcome(
    name="a",
    submitted_s=0.0,
    first_s=60.0,
    finished_s=3600.0,
    deadline_s=None,
    gpu_hours=1.0,
    dollars=1.0,
    restarts=0,
    failures=0,
    evictions=0,
    alone_s=1800.0,
)


def outcome(**changed):
    return ClusterOutcome(
        planner="fifo",
        source="oracle",
        jobs=(msgspec.structs.replace(JOB, **changed),),
        rounds=(RoundRecord(at_s=0.0, used=(1,), there=(2,), running=1, waiting=0),),
        round_s=60.0,
    )


def words(figure):
    figure.canvas.draw()
    notes = [text.get_text() for axes in figure.axes for text in axes.texts]
    return [figure.axes[0].get_title(loc="left"), *notes]


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"finished_s": None}, "No job finished"),
        ({"finished_s": None, "first_s": None}, "No job started"),
    ],
)
def test_a_run_without_an_end_is_drawn_with_a_note(changed, note):
    said = words(cluster_figure(outcome(**changed), ["x"], title="T"))
    assert note in said
    assert "T\n0 of 1 job finished" in said


def test_a_run_without_a_round_is_drawn_too():
    empty = msgspec.structs.replace(outcome(first_s=None, finished_s=None), rounds=())
    assert "No job started" in words(cluster_figure(empty, "x", title="T"))


def test_a_run_with_an_end_has_no_note():
    said = words(cluster_figure(outcome(), ["x"], title="T"))
    assert said == ["T\n1 of 1 job finished, mean completion time 1.00 h"]


@pytest.mark.parametrize("loads", [(24.0,), (12.0, 24.0)])
@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("none", [(True, True), (True, False), (False, True)])
def test_planners_that_end_no_job_are_drawn_beside_others(loads, seeds, none):
    results = {
        Setting(planner=planner, source="oracle", load=load): [
            outcome(**({"finished_s": None} if empty else {})).figures()
        ]
        * seeds
        for load in loads
        for planner, empty in zip(("fifo", "srt"), none, strict=True)
    }
    figure = comparison_figure(compared(results), title="T")
    assert not [each for each in words(figure) if "nan" in each]
    assert all(math.isfinite(limit) for limit in figure.axes[0].get_xlim())
