"""Why an episode may leave out nodes: a fleet that grants at once shows the engine the same."""

from __future__ import annotations

import msgspec
import pytest

from duetune.core.events import Reported
from duetune.core.fleet import NodeKind, NodeState
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.registry.policies import policy_named
from duetune.simulate.episode import Episode
from duetune.testing import Restless, random_market

LAST = ForecastSource.parse("last")


class NodeEpisode(Episode):
    """As an episode, with every GPU a node that is requested, runs, is billed and ends."""

    def _observe(self):
        market = super()._observe()
        state = self.engine.state
        at = state.moment(self._slot - 1)
        lost = {node.id for node in state.alive(NodeKind.SPOT)[market.available :]}
        self._report(
            at,
            {
                node.id: {"state": NodeState.LOST, "ended_at": at}
                for node in state.alive()
                if node.id in lost
            },
        )
        assert state.held() == self._held
        assert state.spent == pytest.approx(self._spent)
        return market

    def _act(self, market, decided):
        state, at = self.engine.state, decided.at
        requested = self.engine.request(at)
        if requested is not None:
            self._happened(requested)
        self._report(
            at,
            {
                node.id: {"state": NodeState.RELEASED, "ended_at": at}
                if node.id in state.releasing
                else {"state": NodeState.RUNNING, "started_at": node.started_at or at}
                for node in state.nodes.values()
                if node.state.alive
            },
        )
        assert state.running() == decided.allocation
        price = {
            NodeKind.SPOT: market.spot_price,
            NodeKind.ON_DEMAND: market.on_demand_price,
        }
        bills = {node.id: {"billed": node.billed + price[node.kind]} for node in state.alive()}
        self._report(at, bills)
        return super()._act(market, decided)

    def _outcome(self):
        state = self.engine.state
        at = state.moment(len(self._entries))
        over = {"state": NodeState.RELEASED, "ended_at": at}
        self._report(at, {node.id: over for node in state.nodes.values() if node.state.alive})
        return super()._outcome()

    def _report(self, at, changes):
        nodes = self.engine.state.nodes
        news = [msgspec.structs.replace(nodes[name], **change) for name, change in changes.items()]
        if news:
            self._happened(Reported(at, tuple(news)))
            self.engine.validate()


@pytest.mark.parametrize("key", ReconfigurationKey)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["ahap", "maximal_spot", "uniform_progress", "restless"])
def test_nodes_that_are_granted_at_once_change_nothing(name, seed, key):
    job = Job(
        work=40,
        deadline=14,
        value=60,
        throughput=linear_throughput(4),
        reconfiguration=Reconfiguration(key=key),
    )
    policy = Restless(seed) if name == "restless" else policy_named(name)
    trace = random_market(seed, 60, most=4)
    with_nodes, without = (each(job, trace, policy, LAST) for each in (NodeEpisode, Episode))
    outcome = with_nodes.run()
    assert outcome == without.run()
    taken = sum(entry.preempted for entry in outcome.entries)
    assert with_nodes.engine.state.preemptions == taken
    assert with_nodes.engine.state.resizes == without.engine.state.resizes
