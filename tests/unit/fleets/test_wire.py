from __future__ import annotations

import msgspec
import pytest

from duetune.core.fleet import Command, Launch, Limit, NodeKind, Release, Task
from duetune.errors import InvalidInput
from duetune.fleets.embedded.provider_messages import TraceDocument, decode_commands
from duetune.testing import random_market

TASK = Task(folder="/jobs/j", command=("true",), environment={"A": "b=c"})
LAUNCH = Launch("j-1.a_2", "j", NodeKind.SPOT, 3, TASK, 0.5)


def coded(*commands: Command) -> bytes:
    return msgspec.json.encode(commands)


def test_commands_come_through_as_they_are():
    commands = [LAUNCH, Release("x", "j"), Limit("j", 2.5), Limit("j", None)]
    assert decode_commands(coded(*commands)) == commands


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a b", "ä", "-a", "a" * 129, "a\n"])
def test_names_that_could_lead_elsewhere_are_refused(name):
    for command in (
        msgspec.structs.replace(LAUNCH, node=name),
        msgspec.structs.replace(LAUNCH, job=name),
        Limit(name, 1.0),
    ):
        with pytest.raises(InvalidInput, match=r"(node|job): "):
            decode_commands(coded(command))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"folder": "relative"}, "task.folder"),
        ({"module": "m"}, "task"),
        ({"command": ()}, "task"),
        ({"environment": {"A=B": "c"}}, "task.environment"),
        ({"environment": {"A": "b\0"}}, "task.environment"),
    ],
)
def test_a_task_that_cannot_run_is_refused(change, field):
    task = msgspec.structs.replace(TASK, **change)
    with pytest.raises(InvalidInput, match=f"{field}: "):
        decode_commands(coded(msgspec.structs.replace(LAUNCH, task=task)))


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'[{"type":"destroy"}]', b'[{"type":"limit"}]'])
def test_what_is_no_command_is_refused(body):
    with pytest.raises(InvalidInput, match="commands: "):
        decode_commands(body)


def test_a_trace_comes_through_as_it_is():
    trace = random_market(1, 9)
    document = msgspec.json.decode(msgspec.json.encode(TraceDocument.of(trace)), type=TraceDocument)
    again = document.trace()
    for field in ("spot_price", "available", "on_demand_price"):
        assert (getattr(again, field) == getattr(trace, field)).all()
    assert (again.slot_hours, again.pools, again.name) == (0.5, trace.pools, trace.name)
