from __future__ import annotations

import duetune.policies.select
from duetune.policies.select import Play
from duetune.testing import SelectorContract
from support.discovery import classes_with

IMPLEMENTATIONS = classes_with(duetune.policies.select, "choose", "learn")


def test_discovery_finds_the_selectors_of_the_issue():
    assert {"Hedge", "AdaHedge", "FixedShare"} <= {each.__name__ for each in IMPLEMENTATIONS}


for _kind in IMPLEMENTATIONS:
    for _play in Play:
        _name = f"Test{_kind.__name__}{_play.name.title()}"
        globals()[_name] = type(
            _name,
            (SelectorContract,),
            {"make": lambda _self, arms, kind=_kind, play=_play: kind(arms, play=play)},
        )
