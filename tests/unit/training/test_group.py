"""A group of several members in one process, over a real coordinator and real sockets."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from duetune.training.authentication import Door
from duetune.training.checkpoint import CheckpointStore
from duetune.training.coordinator import Coordinator
from duetune.training.group_times import QuorumTimes
from duetune.training.network_address import Interface
from support.later import later
from support.patience import PATIENCE_S, slowness, until

pytestmark = pytest.mark.torch

torch = later("torch")
elastic = later("duetune.training.group")
transfer = later("duetune.training.transfer")

# Who says nothing for so long is gone. On a busy machine one may be silent and well.
SLOWNESS = slowness()
QUICK = {
    "patience_s": 0.2 * SLOWNESS,
    "ping_s": 0.3 * SLOWNESS,
    "ping_pause_s": 0.05,
    "connect_s": PATIENCE_S,
}


class Counter:
    """A state that is easy to check: ``sum`` has seen every step once."""

    def __init__(self, step=0):
        self.lock = threading.Lock()
        self.step = step
        self.sum = torch.full((1000,), float(step * (step - 1) / 2))

    def arrays(self):
        return {"sum": self.sum, "none": torch.zeros(0)}

    def document(self):
        return {"step": self.step, "note": float("nan")}

    def load(self, arrays, document):
        self.sum, self.step = arrays["sum"], document["step"]

    def advance(self, parts):
        with self.lock:
            assert {float(part[0]) for part in parts} == {float(self.step)}
            self.sum += torch.stack(parts).mean(0)
            self.step += 1


SECRET = b"the secret of this job, and of no other"


def times(**fields):
    return QuorumTimes(**{"heartbeat_s": 0.4 * SLOWNESS, "join_s": PATIENCE_S} | fields)


@pytest.fixture
def lighthouse(tmp_path):
    coordinator = Coordinator(SECRET, tmp_path / "checkpoints", times=times())
    yield coordinator.address
    coordinator.close()


class Member(threading.Thread):
    def __init__(
        self,
        lighthouse,
        name,
        steps,
        step=0,
        until=None,
        secret=SECRET,
        restored="",
        interface=Interface(),  # noqa: B008 - a frozen value
    ):
        super().__init__(daemon=True)
        self.restored = []
        self.state = Counter(step)
        self.worlds = []
        self.steps = []
        self.broken = []
        self.leave = threading.Event()
        self.left = False
        self._steps = steps
        self._until = until or (lambda _member: False)
        self.group = elastic.ElasticGroup(
            elastic.GroupPlace(
                coordinator=lighthouse if callable(lighthouse) else lambda: lighthouse,
                secret=secret,
            ),
            name,
            self.state,
            torch.device("cpu"),
            restored=restored,
            restore=self.restore,
            leaving=self.leave.is_set,
            settings=elastic.GroupSettings(interface, **QUICK),
        )
        self.start()

    def run(self):
        while self.state.step < self._steps and not self._until(self):
            try:
                self._round()
            except elastic.GroupBroken as broken:
                self.broken.append(str(broken))
            except elastic.Left:
                self.left = True
                break
        self.group.close()

    def restore(self, name):
        self.restored.append(name)
        fresh = Counter(int(name[5:13]))
        self.state.load({"sum": fresh.sum}, {"step": fresh.step})

    def _round(self):
        arrangement = self.group.form()
        time.sleep(0.01)
        self.state.advance(self.group.gather(torch.full((1000,), float(self.state.step))))
        self.worlds.append(arrangement.world)
        self.steps.append(self.state.step)


def finish(*members):
    for member in members:
        member.join(PATIENCE_S)
        assert not member.is_alive()
        assert float(member.state.sum[0]) == member.state.step * (member.state.step - 1) / 2


def test_members_come_and_go_and_every_step_is_done_once(lighthouse):
    # Long enough for all of it, and every member ends by itself.
    first = Member(
        lighthouse, "a", 10**9, until=lambda one: one.worlds[-3:] == [1, 1, 1] and 3 in one.worlds
    )
    until(lambda: len(first.worlds) > 2)
    second = Member(lighthouse, "b", 10**9, until=lambda one: 3 in one.worlds[:-4])
    until(lambda: 2 in first.worlds)
    third = Member(lighthouse, "c", 10**9, step=2, until=lambda one: one.worlds[-4:] == [2] * 4)
    finish(first, second, third)
    # Neighbours only: nobody left a group of three for a group of one.
    changes = [
        one for one, other in zip(first.worlds, [*first.worlds[1:], 0], strict=True) if one != other
    ]
    assert changes == [1, 2, 3, 2, 1]
    assert second.state.step > third.worlds.count(3)


def test_a_member_that_dies_costs_no_step(lighthouse):
    survivor = Member(lighthouse, "a", 10**9)
    victim = Member(lighthouse, "b", 10**9)
    until(lambda: 2 in survivor.worlds)
    # What the end of a process does: heartbeats, state server and connections are gone at once.
    victim._until = lambda _member: True
    finish(victim)
    until(lambda: survivor.worlds[-1] == 1)
    survivor._until = lambda _member: True
    finish(survivor)
    assert {later - earlier for earlier, later in pairwise(survivor.steps)} == {1}


def test_waiting_for_a_quorum_ends_when_told_to_leave():
    alone = Member("tcp://127.0.0.1:9", "a", 5)
    time.sleep(0.3)
    assert alone.is_alive()
    alone.leave.set()
    alone.join(PATIENCE_S)
    assert alone.left


def test_everything_listens_on_the_chosen_interface_only(lighthouse):
    member = Member(lighthouse, "a", 3)
    table = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()
    listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    for address in (lighthouse, member.group._links._door.address):
        assert address.startswith("tcp://127.0.0.1:")
        port = int(address.rpartition(":")[2])
        assert f"0100007F:{port:04X}" in listening
    finish(member)


def test_a_state_is_handed_over_whole_or_not_at_all():
    state = Counter(7)
    server = transfer.MemberDoor(Interface(), SECRET, state, lambda: True)
    arrays, document = transfer.fetch_state(server.address, SECRET, 7)
    assert torch.equal(arrays["sum"], state.sum)
    assert document["step"] == 7
    with pytest.raises(transfer.TransferFailed, match="no state of step 6"):
        transfer.fetch_state(server.address, SECRET, 6)
    server.close()
    with pytest.raises(transfer.TransferFailed):
        transfer.fetch_state(server.address, SECRET, 7)


def test_a_member_whose_main_thread_hangs_says_so():
    lively = True
    server = transfer.MemberDoor(Interface(), SECRET, Counter(), lambda: lively)
    assert transfer.alive(server.address, SECRET, PATIENCE_S) is True
    assert transfer.alive(server.address, b"another secret", PATIENCE_S) is False
    lively = False
    assert transfer.alive(server.address, SECRET, PATIENCE_S) is False
    server.close()
    assert transfer.alive(server.address, SECRET, PATIENCE_S) is False


def test_who_does_not_know_the_secret_neither_joins_nor_reads(lighthouse):
    member = Member(lighthouse, "b", 10**9)
    until(lambda: member.worlds)
    stranger = Member(lighthouse, "a", 10**9, step=10**6, secret=b"made up")
    with pytest.raises(transfer.TransferFailed):
        transfer.fetch_state(member.group._links._door.address, b"made up", member.state.step)
    before = len(member.worlds)
    until(lambda: len(member.worlds) > before + 3)
    assert set(member.worlds) == {1}
    assert stranger.worlds == []
    stranger.leave.set()
    member._until = lambda _member: True
    finish(member)
    stranger.join(PATIENCE_S)
    assert stranger.left


def test_a_newcomer_that_says_it_is_ahead_is_given_the_state_of_the_group(lighthouse):
    member = Member(lighthouse, "b", 10**9)
    until(lambda: member.worlds)
    # Its sum is wrong, and its first name would make it the leader.
    liar = Member(lighthouse, "a", 10**9, step=10**6, restored="step-01000000.epoch-000001")
    liar.state.sum += 1
    until(lambda: 2 in liar.worlds)
    assert liar.state.step < 10**6
    for each in (member, liar):
        each._until = lambda _member: True
    finish(member, liar)


def test_a_checkpoint_that_is_ahead_is_read_by_everyone_from_the_disk(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    (tmp_path / "file").touch()
    name = CheckpointStore(checkpoints, epoch=1).publish(4000, tmp_path / "file").name
    coordinator = Coordinator(SECRET, checkpoints, times=times())
    asleep = Member(coordinator.address, "a", 10**9)
    until(lambda: asleep.worlds)
    new = Member(coordinator.address, "b", 10**9, step=4000, restored=name)
    until(lambda: 2 in new.worlds)
    assert set(asleep.restored) == {name}
    assert new.restored == []
    for each in (asleep, new):
        each._until = lambda _member: True
    finish(asleep, new)
    coordinator.close()


def test_members_of_several_addresses_train_over_encrypted_connections(tmp_path):
    """As on two machines: each listens everywhere and is dialled by an address of its own."""
    interfaces = [Interface("0.0.0.0", f"127.0.0.{number}", tls=True) for number in (1, 2, 3)]
    coordinator = Coordinator(
        SECRET, tmp_path / "checkpoints", interface=interfaces[0], times=times()
    )
    assert coordinator.address.startswith("tls://127.0.0.1:")
    first = Member(coordinator.address, "a", 10**9, interface=interfaces[1])
    until(lambda: first.worlds)
    # It is behind, so it copies the state, and then sums over links.
    second = Member(coordinator.address, "b", 10**9, interface=interfaces[2])
    until(lambda: 2 in second.worlds[:-3])
    assert second.group._links.address.startswith("tls://127.0.0.3:")
    for each in (first, second):
        each._until = lambda _member: True
    finish(first, second)
    coordinator.close()


def test_members_follow_the_coordinator_to_its_new_address(tmp_path):
    old, new = (Coordinator(SECRET, tmp_path / "checkpoints", times=times()) for _ in range(2))
    place = [old.address]
    members = [Member(lambda: place[0], name, 10**9) for name in "ab"]
    until(lambda: all(2 in member.worlds for member in members))
    place[0] = new.address
    old.close()
    seen = [len(member.worlds) for member in members]
    until(
        lambda: all(2 in one.worlds[count + 2 :] for one, count in zip(members, seen, strict=True))
    )
    for each in members:
        each._until = lambda _member: True
    finish(*members)
    new.close()


def test_a_member_leaves_a_coordinator_that_hangs_once_another_one_serves(tmp_path):
    held = []
    hanging = Door(Interface(), SECRET, lambda connection: held.append(connection) or True)
    new = Coordinator(SECRET, tmp_path / "checkpoints", times=times())
    place = [hanging.address]
    member = Member(lambda: place[0], "a", 10**9)
    until(lambda: member.group._coordinator._dialled == hanging.address)
    place[0] = new.address
    until(lambda: member.worlds)
    member._until = lambda _member: True
    finish(member)
    hanging.close()
    for connection in held:
        connection.close()
    new.close()
