"""The conformance suite of market feeds, built in or your own."""

from __future__ import annotations

from duetune.core.ports import MarketFeed


class MarketFeedContract:
    """Subclass it and implement ``make`` and ``turn``."""

    def make(self) -> MarketFeed:
        """Return a feed; called once in every test."""
        raise NotImplementedError

    def turn(self) -> None:
        """Let at least one slot pass, but not many."""
        raise NotImplementedError

    def test_it_is_a_feed(self) -> None:
        """The object implements the ``MarketFeed`` port."""
        assert isinstance(self.make(), MarketFeed)

    def test_now_is_within_its_slot(self) -> None:
        """A report is from within its slot, with valid prices and counts."""
        feed = self.make()
        for _ in range(3):
            report = feed.now()
            assert report.slot_began <= report.at < report.slot_began + report.slot_s
            assert report.slot.on_demand_price > 0
            assert report.slot.spot_price >= 0
            assert report.slot.available >= 0
            self.turn()

    def test_slots_are_counted_one_by_one(self) -> None:
        """The index of a slot grows by one per slot length."""
        feed = self.make()
        before = feed.now()
        self.turn()
        after = feed.now()
        passed = after.index - before.index
        assert passed >= 1
        assert abs(after.slot_began - before.slot_began - passed * before.slot_s) < 1e-3

    def test_history_ends_before_the_present_slot(self) -> None:
        """History agrees with earlier reports and ends before the present slot."""
        feed = self.make()
        seen = {}
        for _ in range(3):
            report = feed.now()
            seen[report.index] = report.slot
            self.turn()
        last = feed.now().index
        history = feed.history(last - min(seen))
        latest = feed.now().index
        assert history is not None
        # The feed may have moved to another slot between the calls.
        for present in range(last, latest + 1):
            first = present - history.slots
            told = {first + number: history.slot(number) for number in range(history.slots)}
            if all(told[index] == slot for index, slot in seen.items() if index in told):
                break
        else:
            raise AssertionError(f"history {told} differs from what now() reported: {seen}")

    def test_history_is_no_longer_than_asked_for(self) -> None:
        """History has the requested number of slots; none for 0."""
        feed = self.make()
        self.turn()
        self.turn()
        assert feed.history(0) is None
        for slots in (1, 2):
            history = feed.history(slots)
            assert history is not None
            assert history.slots == slots
