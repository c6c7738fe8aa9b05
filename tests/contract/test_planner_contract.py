from __future__ import annotations

import msgspec
import pytest

import duetune.planners
from duetune.core.planning import Plan
from duetune.planners.queues import QueuePlanner
from duetune.registry.planners import PLANNERS, planner_named
from duetune.testing import PlannerContract
from support.discovery import classes_with

IMPLEMENTATIONS = [
    each for each in classes_with(duetune.planners, "plan") if not each.__name__.startswith("_")
]
NAMES = ("fifo", "fifo:backfill", "srt", "edf", "sia", "sia:0.5", "tutti", "tutti:2.5")


def test_every_implementation_is_in_the_suite():
    assert {type(planner_named(name)) for name in NAMES} == set(IMPLEMENTATIONS)


def test_every_listed_name_is_in_the_suite():
    listed = {each.name.split("[")[0] for each in PLANNERS}
    assert listed <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_planner_can_be_named_by_its_name(name):
    planner = planner_named(name)
    assert planner.name == name
    assert planner_named(planner.name) == planner


for _name in NAMES:
    _title = "Test" + "".join(part.title() for part in _name.replace(".", "").split(":"))
    globals()[_title] = type(
        _title,
        (PlannerContract,),
        {
            "make": lambda _self, name=_name: planner_named(name),
            "moves": not _name.startswith("fifo"),
        },
    )


class Changed(msgspec.Struct, frozen=True):
    """First come, first served, and then something that must not be."""

    wrong: str

    @property
    def name(self):
        return "wrong"

    def plan(self, views, stock):
        plan = QueuePlanner().plan(views, stock)
        shapes = dict(plan.shapes)
        if self.wrong == "greedy":
            shapes = {view.name: len(stock.shapes) - 1 for view in views}
        if self.wrong == "careless" and views:
            shapes = {each.name: 0 for each in views if not each.pinned}
        if self.wrong == "meddling":
            for view in views:
                view.pace[:] = 1.0
        if self.wrong == "idle":
            shapes = {}
        return Plan(shapes, dict.fromkeys(shapes, "two\nlines"))


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        ("greedy", "test_nobody_gets_what_there_is_not"),
        ("greedy", "test_jobs_get_only_shapes_that_are_there_and_fit_them"),
        ("careless", "test_who_is_pinned_keeps_what_it_has"),
        ("greedy", "test_quotas_are_kept"),
        ("careless", "test_nodes_are_given_whole_or_in_one_part"),
        ("meddling", "test_what_it_is_shown_stays_as_it_was"),
        ("idle", "test_a_job_alone_is_served"),
        ("idle", "test_priority_comes_first"),
        ("none", "test_reasons_are_one_line_of_words"),
    ],
)
def test_the_suite_finds_a_planner_that_does_wrong(wrong, test):
    suite = type("Suite", (PlannerContract,), {"make": lambda _self: Changed(wrong)})()
    with pytest.raises((AssertionError, KeyError)):
        getattr(suite, test)()
