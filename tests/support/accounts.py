"""What must hold of every job that is over, in its journal, on its bill and on its fleet."""

from __future__ import annotations

import itertools

import pytest

from duetune.core.events import Ended, Requested
from duetune.core.fleet import NodeKind
from support.tuning import progress


def accounted(home, job):
    """The journal's bill is the fleet's, to the last digit; nothing lives on; nothing ran twice."""
    story = [recorded.event for recorded in home.story(job)]
    ends = [event for event in story if isinstance(event, Ended)]
    assert len(ends) == 1
    nodes = home.fleet().fleet.observe(job).nodes
    assert not [node for node in nodes if node.state.alive]
    assert ends[0].cost == pytest.approx(sum(node.billed for node in nodes), abs=1e-12)
    with home.store() as store:
        charged = sum(charge.dollars for charge in store.charges(job))
    assert charged == pytest.approx(ends[0].cost, abs=1e-12)
    asked = [
        launch.node for event in story if isinstance(event, Requested) for launch in event.launches
    ]
    assert len(asked) == len(set(asked))
    assert {node.id for node in nodes} <= set(asked)
    return nodes


def billed_by_the_clock(home, job):
    """On an engine that others run, every node costs its time at the price of the fleet's file."""
    prices = {NodeKind.SPOT: 1.0, NodeKind.ON_DEMAND: 3.0}
    found = [each.node for each in home.entries(job)]
    bill = sum(
        prices[node.kind] * (node.ended_at - node.started_at) / 3600
        for node in found
        if node.started_at
    )
    assert sum(node.billed for node in found) == pytest.approx(bill, rel=1e-6)
    assert home.job(job).spent == pytest.approx(bill, rel=1e-6)


def as_well_trained(home, calm, job):
    """Both jobs end at the same loss, whatever happened to one of them."""
    losses = [progress(home, each)[-1].eval_loss for each in (calm, job)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def never_two_at_once(nodes):
    spans = sorted(
        (node.started_at, node.ended_at) for node in nodes if node.started_at is not None
    )
    return all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(spans))
