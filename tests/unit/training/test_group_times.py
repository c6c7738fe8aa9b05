"""The times of a group on one machine and on a network."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from duetune.core import node_contract
from duetune.errors import InvalidInput
from duetune.training.group_times import GroupSettings, QuorumTimes, SeatTimes, variables
from duetune.training.network_address import Interface

NETWORK = Interface("0.0.0.0")
SETS = {
    node_contract.GROUP_TIMES: (GroupSettings(), GroupSettings.from_environment),
    node_contract.QUORUM_TIMES: (
        QuorumTimes(),
        lambda environ: QuorumTimes.from_environment(Interface.from_environment(environ), environ),
    ),
    node_contract.SEAT_TIMES: (
        SeatTimes(),
        lambda environ: SeatTimes.from_environment(Interface.from_environment(environ), environ),
    ),
}


def test_loopback_has_short_times_and_a_network_long_ones():
    for near, read in SETS.values():
        assert read({}) == near
        far = read({"DUETUNE_BIND": "0.0.0.0"})
        assert far != near
    member = GroupSettings.from_environment({"DUETUNE_BIND": "0.0.0.0"})
    quorum = QuorumTimes.from_environment(NETWORK, {})
    assert member.interface == NETWORK
    assert quorum.heartbeat_s >= 4 * member.heartbeat_s >= 4.0


@pytest.mark.parametrize("first", SETS)
def test_every_time_has_a_variable(first):
    near, read = SETS[first]
    for name, variable in variables(type(near), first).items():
        assert variable == f"{first}{name.upper()}"
        for bind in ("127.0.0.1", "0.0.0.0"):
            usual = read({"DUETUNE_BIND": bind})
            found = read({"DUETUNE_BIND": bind, variable: "7"})
            assert found == msgspec.structs.replace(usual, **{name: 7})
            assert type(getattr(found, name)) is type(getattr(usual, name))
        for wrong in ("0", "-1", "nan", "inf", "soon"):
            with pytest.raises(InvalidInput, match=variable):
                read({variable: wrong})


def test_the_reference_lists_every_variable_with_its_values():
    page = Path(__file__).parents[3] / "docs" / "reference" / "network.md"
    text = page.read_text("utf-8")
    for first, (near, read) in SETS.items():
        far = read({"DUETUNE_BIND": "0.0.0.0"})
        for name, variable in variables(type(near), first).items():
            row = f"| `{variable}` | {getattr(near, name):g} | {getattr(far, name):g} |"
            assert row in text
