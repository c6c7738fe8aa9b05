"""The conformance suite of journals, built in or your own."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, get_args

import msgspec

from duetune.core.events import Decided, Event, Recorded
from duetune.core.ports import Journal
from duetune.errors import DuetuneError, StaleController
from duetune.testing.sample_events import decision, story

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = ("job", "Job", "job%", "job_", "a'b\"c;--", "größe-日本-🎻", "x" * 200)
WRITERS = 4
PROCESSES = 2
START_S = 60.0
APPENDS = 25


class JournalContract:
    """Subclass it and implement ``make``.

    Implement ``opener`` too if other processes can open the journal that ``make`` made.
    """

    def make(self) -> Journal:
        """Return an empty journal."""
        raise NotImplementedError

    def opener(self) -> Callable[[], Journal] | None:
        """Return a function that opens the same journal in another process.

        It must survive pickling. None leaves out the test with several processes.
        """
        return None

    def test_it_is_a_journal(self) -> None:
        """The object implements the ``Journal`` port."""
        assert isinstance(self.make(), Journal)

    def test_a_stream_nobody_wrote_to_is_empty(self) -> None:
        """Reading a new stream returns an empty list."""
        journal = self.make()
        assert journal.read("job") == []
        assert journal.append("job", [], expected=0) == 0
        assert journal.read("job") == []

    def test_events_come_back_in_order_counted_from_one(self) -> None:
        """``append`` returns the new length; positions start at 1."""
        journal = self.make()
        assert journal.append("job", _decisions(1, 3), expected=0) == 3
        assert journal.append("job", _decisions(4, 4), expected=3) == 4
        assert journal.read("job") == _recorded(_decisions(1, 4))

    def test_reading_goes_on_where_it_stopped(self) -> None:
        """``read`` returns only the events after the given position."""
        journal = self.make()
        journal.append("job", _decisions(1, 5), expected=0)
        assert journal.read("job", after=3) == _recorded(_decisions(1, 5))[3:]
        assert journal.read("job", after=5) == []
        assert journal.read("job", after=99) == []

    def test_every_event_comes_back_as_it_was(self) -> None:
        """Events of every kind are returned unchanged."""
        journal = self.make()
        assert {type(event) for event in story()} == set(get_args(Event))
        journal.append("job", story(), expected=0)
        assert journal.read("job") == _recorded(story())

    def test_whoever_expects_another_length_writes_nothing(self) -> None:
        """A wrong ``expected`` raises ``StaleController`` and writes nothing."""
        journal = self.make()
        journal.append("job", _decisions(1, 3), expected=0)
        for expected in (-1, 0, 2, 4, 99):
            for events in (_decisions(7, 9), ()):
                assert _refused(journal, "job", events, expected)
        assert _refused(journal, "new", _decisions(1, 1), 1)
        assert journal.read("job") == _recorded(_decisions(1, 3))
        assert journal.read("new") == []

    def test_all_events_of_a_call_are_written_or_none(self) -> None:
        """One event that cannot be written fails the whole call."""
        journal = self.make()
        journal.append("job", _decisions(1, 1), expected=0)
        unwritable = msgspec.structs.replace(decision(3), at=math.inf)
        try:
            journal.append("job", [decision(2), unwritable, decision(4)], expected=1)
        except DuetuneError:
            pass
        else:
            raise AssertionError("an event that cannot be read back was written")
        assert journal.read("job") == _recorded(_decisions(1, 1))
        assert journal.append("job", _decisions(2, 2), expected=1) == 2

    def test_streams_do_not_mix(self) -> None:
        """Streams with unusual and similar names stay separate."""
        journal = self.make()
        for count, name in enumerate(NAMES, 1):
            journal.append(name, _decisions(1, count), expected=0)
        for count, name in enumerate(NAMES, 1):
            assert journal.read(name) == _recorded(_decisions(1, count)), name

    def test_any_text_and_any_size_comes_back(self) -> None:
        """Control characters, all scripts and 2 MB of text are kept."""
        journal = self.make()
        reasons = (
            "",
            "\0",
            'quote " and \\',
            "日本 🎻 \u200fשלום",
            "\r\n\t\x1b",
            "long " * 400_000,
        )
        events = [decision(slot, reason=reason) for slot, reason in enumerate(reasons)]
        journal.append("job", events, expected=0)
        assert journal.read("job") == _recorded(events)

    def test_numbers_come_back_to_the_last_bit(self) -> None:
        """Floats are returned exactly, including -0.0 and subnormals."""
        journal = self.make()
        numbers = (0.1 + 0.2, 1e-300, 5e-324, 1.7976931348623157e308, -0.0, 2.0**53 + 2)
        event = msgspec.structs.replace(decision(1), memo=numbers)
        journal.append("job", [event], expected=0)
        (found,) = journal.read("job")
        assert isinstance(found.event, Decided)
        assert [each.hex() for each in found.event.memo] == [each.hex() for each in numbers]

    def test_ten_thousand_events_are_nothing_special(self) -> None:
        """One call can write ten thousand events."""
        journal = self.make()
        events = _decisions(1, 10_000)
        assert journal.append("job", events, expected=0) == 10_000
        assert journal.append("job", _decisions(10_001, 10_001), expected=10_000) == 10_001
        assert journal.read("job") == _recorded(_decisions(1, 10_001))

    def test_a_reader_sees_whole_appends_while_another_writes(self) -> None:
        """A concurrent reader never sees part of a call."""
        journal = self.make()
        done = threading.Event()

        def write() -> None:
            try:
                for batch in range(60):
                    journal.append("job", _decisions(batch * 5, batch * 5 + 4), expected=batch * 5)
            finally:
                done.set()

        lengths = []
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while True:
                last = done.is_set()
                found = journal.read("job")
                assert found == _recorded(_decisions(0, len(found) - 1))
                lengths.append(len(found))
                if last:
                    break
            writing.result()
        assert lengths == sorted(lengths)
        assert all(length % 5 == 0 for length in lengths)
        assert lengths[-1] == 300

    def test_of_writers_in_threads_one_wins_each_position(self) -> None:
        """Exactly one of several threads writes each position."""
        journal = self.make()
        with ThreadPoolExecutor(WRITERS) as pool:
            wins = list(pool.map(lambda writer: _compete(journal, writer), range(WRITERS)))
        _check_race(journal, wins)

    def test_of_writers_in_processes_one_wins_each_position(self) -> None:
        """Exactly one of several processes writes each position."""
        journal, opener = self.make(), self.opener()
        if opener is None:
            return
        # Spawned, not forked: a process must not inherit open connections.
        with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
            racing = [pool.submit(_open_and_compete, opener, writer) for writer in range(PROCESSES)]
            wins = [each.result() for each in racing]
        _check_race(journal, wins)


def _decisions(first: int, last: int) -> tuple[Event, ...]:
    return tuple(decision(slot) for slot in range(first, last + 1))


def _recorded(events: Sequence[Event]) -> list[Recorded]:
    return [Recorded(position, event) for position, event in enumerate(events, 1)]


def _refused(journal: Journal, stream: str, events: Sequence[Event], expected: int) -> bool:
    """Return whether the append raised ``StaleController``."""
    try:
        journal.append(stream, events, expected=expected)
    except StaleController:
        return True
    return False


def _open_and_compete(opener: Callable[[], Journal], writer: int) -> list[int]:
    """Open the journal, wait until all processes have started, and compete."""
    journal = opener()
    journal.append(f"ready-{writer}", [decision(0)], expected=0)
    give_up = time.monotonic() + START_S
    while not all(journal.read(f"ready-{each}") for each in range(PROCESSES)):
        if time.monotonic() > give_up:
            raise TimeoutError("the other process did not start")
        time.sleep(0.005)
    return _compete(journal, writer)


def _compete(journal: Journal, writer: int) -> list[int]:
    """Append two events at a time until ``APPENDS`` calls have succeeded; return the positions won.

    The second event names the writer, so the position of the first can be checked too.
    """
    won: list[int] = []
    length = 0
    while len(won) < 2 * APPENDS:
        pair = [decision(len(won), reason=f"first {writer}"), decision(0, reason=str(writer))]
        if _refused(journal, "race", pair, length):
            length += len(journal.read("race", after=length))
        else:
            won += [length + 1, length + 2]
            length += 2
    return won


def _check_race(journal: Journal, wins: list[list[int]]) -> None:
    """Check that each position was won by one writer and holds that writer's event."""
    found = journal.read("race")
    positions = [position for won in wins for position in won]
    assert sorted(positions) == list(range(1, len(positions) + 1))
    assert [each.position for each in found] == sorted(positions)
    for writer, won in enumerate(wins):
        for first, second in zip(won[::2], won[1::2], strict=True):
            assert second == first + 1
            events = [found[place - 1].event for place in (first, second)]
            assert all(isinstance(event, Decided) for event in events)
            reasons = [event.reason for event in events if isinstance(event, Decided)]
            assert reasons == [f"first {writer}", str(writer)]
