"""Which node runs the coordinator: candidates with a simulated clock, network and list."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetune.storage.folder_storage import FolderStorage
from duetune.training.authentication import Door
from duetune.training.coordinator import stand_by
from duetune.training.coordinator_seat import CoordinatorSeat, Seat, StorageSeats, answers
from duetune.training.group_times import SeatTimes
from duetune.training.network_address import Interface
from support.patience import PATIENCE_S

TIMES = SeatTimes(look_s=1.0, dial_s=1.0, failures=3, over_s=5.0)


class Cluster:
    """Nodes, their coordinators, who can reach whom, the list of seats, and the clock."""

    def __init__(self):
        self.taken = {}
        self.open = {}
        self.cut = set()
        self.now = 0.0
        self.away = False
        self.lost = False
        self._names = itertools.count()

    def candidate(self, node, pause=lambda: None):
        return CoordinatorSeat(
            View(self, pause),
            lambda: Running(self, node),
            lambda address: pause() or self.reaches(node, address),
            TIMES,
            now=lambda: self.now,
        )

    def reaches(self, node, address):
        return address in self.open and frozenset({node, self.open[address]}) not in self.cut

    def new_name(self):
        return f"tcp://{next(self._names)}:1"

    @property
    def newest(self):
        return max(self.taken.items(), default=None)


class View:
    """One node's way to the list; other nodes may act before each of its calls."""

    def __init__(self, cluster, pause):
        self._cluster = cluster
        self._pause = pause

    def newest(self):
        self._pause()
        if self._cluster.away:
            raise OSError("the list is away")
        return Seat(*self._cluster.newest) if self._cluster.taken else None

    def take(self, number, address):
        self._pause()
        assert 1 <= number <= len(self._cluster.taken) + 1, "numbers have no gap"
        if number in self._cluster.taken:
            return False
        self._cluster.taken[number] = address
        # A store that tries again by itself finds the number taken, by itself.
        return not self._cluster.lost


class Running:
    def __init__(self, cluster, node):
        self._cluster = cluster
        self.address = cluster.new_name()
        cluster.open[self.address] = node

    def close(self):
        self._cluster.open.pop(self.address, None)


@pytest.fixture
def cluster():
    return Cluster()


def tick(cluster, *candidates, seconds=1):
    """Let time pass; return the addresses that the candidates found last."""
    found = []
    for _ in range(seconds):
        cluster.now += 1.0
        found = [candidate.tick() for candidate in candidates]
    return found


def test_the_first_candidate_takes_the_first_seat_and_the_others_follow(cluster):
    first, second = cluster.candidate("a"), cluster.candidate("b")
    addresses = tick(cluster, first, second, seconds=20)
    assert cluster.taken == {1: addresses[0]}
    assert addresses == [*cluster.open] * 2
    assert first.serving
    assert not second.serving


def test_a_coordinator_is_replaced_after_several_failures_over_some_time(cluster):
    first, second = cluster.candidate("a"), cluster.candidate("b")
    (old, _) = tick(cluster, first, second)
    cluster.open.clear()
    assert tick(cluster, second, seconds=5) == [old], "it may be a short disturbance"
    (new,) = tick(cluster, second)
    assert new != old
    assert cluster.taken == {1: old, 2: new}
    assert second.serving


def test_many_quick_looks_are_not_enough(cluster):
    first, second = cluster.candidate("a"), cluster.candidate("b")
    (old, _) = tick(cluster, first, second)
    cluster.open.clear()
    assert {second.tick() for _ in range(50)} == {old}


def test_a_failure_that_passes_is_forgotten(cluster):
    first, second = cluster.candidate("a"), cluster.candidate("b")
    tick(cluster, first, second)
    for _ in range(5):
        cluster.cut.add(frozenset("ab"))
        tick(cluster, second, seconds=4)
        cluster.cut.clear()
        tick(cluster, second)
    assert len(cluster.taken) == 1


def test_a_coordinator_whose_seat_is_not_the_newest_ends(cluster):
    first, second = cluster.candidate("a"), cluster.candidate("b")
    tick(cluster, first, second)
    cluster.cut.add(frozenset("ab"))
    tick(cluster, second, seconds=10)
    assert len(cluster.open) == 2, "until the first one looks at the list"
    assert tick(cluster, first) == [cluster.taken[2]]
    assert list(cluster.open) == [cluster.taken[2]]
    assert not first.serving


def test_who_loses_a_number_closes_its_own_coordinator(cluster):
    other = cluster.candidate("b")
    acted = []

    def just_before_taking():
        if len(cluster.open) == 1 and not acted:
            acted.append(1)
            tick(cluster, other)

    first = cluster.candidate("a", just_before_taking)
    assert tick(cluster, first) == [cluster.taken[1]]
    assert other.serving
    assert not first.serving
    assert list(cluster.open.values()) == ["b"]


def test_a_coordinator_that_ended_by_itself_is_replaced_by_its_own_node(cluster):
    only = cluster.candidate("a")
    tick(cluster, only)
    cluster.open.clear()
    tick(cluster, only, seconds=7)
    assert list(cluster.open) == [cluster.taken[2]]


def test_who_cannot_read_the_list_continues_to_serve(cluster):
    only = cluster.candidate("a")
    tick(cluster, only)
    cluster.away = True
    with pytest.raises(OSError, match="away"):
        tick(cluster, only)
    assert only.serving
    assert len(cluster.open) == 1


def test_a_lost_answer_of_the_list_does_not_lose_the_seat(cluster):
    cluster.lost = True
    only = cluster.candidate("a")
    assert tick(cluster, only, seconds=9) == [cluster.taken[1]]
    assert only.serving


class Killed(BaseException):
    pass


class Node(threading.Thread):
    """A candidate that stops before every call, until the test lets it go on."""

    def __init__(self, cluster, name):
        super().__init__(daemon=True)
        self._cluster = cluster
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.node = name
        self.ticks = 0
        self.address = None
        self.candidate = cluster.candidate(name, self._pause)
        self.start()
        self._stopped.acquire()

    def run(self):
        try:
            self._pause()
            while True:
                self.address = self.candidate.tick()
                self.ticks += 1
        except Killed:
            self._stopped.release()

    def _pause(self):
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def step(self):
        """Let it do one call to the list or the network."""
        self._go.release()
        self._stopped.acquire()

    def whole_tick(self):
        before = self.ticks
        while self.ticks == before:
            self.step()

    def kill(self):
        self._killed = True
        self.step()
        self.join()
        # What it had running ends with it.
        mine = [address for address, node in self._cluster.open.items() if node == self.node]
        for address in mine:
            del self._cluster.open[address]


NODES = "abc"
ACTIONS = st.lists(
    st.one_of(
        *[st.tuples(st.just("step"), st.sampled_from(NODES))] * 4,
        st.tuples(st.just("cut"), st.sampled_from(["ab", "ac", "bc"])),
        st.tuples(st.just("heal"), st.sampled_from(["ab", "ac", "bc"])),
        st.tuples(st.just("restart"), st.sampled_from(NODES)),
        st.tuples(st.just("wait"), st.just("")),
    ),
    max_size=60,
)


@given(actions=ACTIONS)
def test_every_number_is_taken_once_and_all_find_the_newest(actions):
    cluster = Cluster()
    nodes = {name: Node(cluster, name) for name in NODES}
    try:
        history = {}
        for action, which in actions:
            match action:
                case "step":
                    nodes[which].step()
                case "cut":
                    cluster.cut.add(frozenset(which))
                case "heal":
                    cluster.cut.discard(frozenset(which))
                case "restart":
                    nodes[which].kill()
                    nodes[which] = Node(cluster, which)
                case "wait":
                    cluster.now += 3.0
            assert history.items() <= cluster.taken.items(), "a seat has changed"
            history = dict(cluster.taken)
            held = [node.candidate._own for node in nodes.values() if node.candidate._own]
            assert len({seat.number for seat in held}) == len(held), "two have one seat"
        cluster.cut.clear()
        # At most: one ends a tick, one notices that the newest is dead, and all look again.
        for _ in range(12):
            cluster.now += 3.0
            for node in nodes.values():
                node.whole_tick()
        _, newest = cluster.newest
        assert list(cluster.open) == [newest]
        assert {node.address for node in nodes.values()} == {newest}
    finally:
        for node in nodes.values():
            node.kill()


def test_a_folder_gives_a_number_to_one_of_many(tmp_path):
    seats = StorageSeats(FolderStorage(tmp_path / "coordinators"))
    assert seats.newest() is None
    barrier = threading.Barrier(8)

    def race(place):
        won = []
        for number in range(1, 11):
            barrier.wait()
            if seats.take(number, f"tcp://{place}:1"):
                won.append(number)
        return won

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert sorted(itertools.chain(*won)) == list(range(1, 11))
    (last,) = (place for place, numbers in enumerate(won) if 10 in numbers)
    assert seats.newest() == Seat(10, f"tcp://{last}:1")
    assert len(list((tmp_path / "coordinators").iterdir())) == 10, "no drafts are left"
    assert (tmp_path / "coordinators" / "000010").stat().st_mode & 0o777 == 0o600


def test_only_who_knows_the_secret_counts_as_a_coordinator():
    door = Door(Interface(), b"the job's secret", lambda _connection: False)
    assert answers(door.address, b"the job's secret", PATIENCE_S)
    assert not answers(door.address, b"another", PATIENCE_S)
    door.close()
    assert not answers(door.address, b"the job's secret", PATIENCE_S)


def test_the_newest_address_is_kept_in_a_file(cluster, tmp_path):
    file, seen = tmp_path / "address", []
    other, here = cluster.candidate("a"), cluster.candidate("b")

    def ended():
        cluster.now += 1.0
        seen.append(file.read_text() if file.exists() else None)
        cluster.away = len(seen) == 3
        if len(seen) == 5:
            other.close()
        return len(seen) == 20

    tick(cluster, other)
    stand_by(here, file, ended)
    assert list(dict.fromkeys(seen)) == [cluster.taken[1], cluster.taken[2]]
    assert not cluster.open, "its own one ends with it"
