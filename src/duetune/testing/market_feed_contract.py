"""What every market feed must do, built in or your own."""

from __future__ import annotations

from duetune.core.ports import MarketFeed


class MarketFeedContract:
    """Subclass it and give ``make`` and ``turn``."""

    def make(self) -> MarketFeed:
        """A feed; called once in every test."""
        raise NotImplementedError

    def turn(self) -> None:
        """Lets at least one slot pass, and not many."""
        raise NotImplementedError

    def test_it_is_a_feed(self) -> None:
        assert isinstance(self.make(), MarketFeed)

    def test_now_is_within_its_slot(self) -> None:
        feed = self.make()
        for _ in range(3):
            report = feed.now()
            assert report.slot_began <= report.at < report.slot_began + report.slot_s
            assert report.slot.on_demand_price > 0
            assert report.slot.spot_price >= 0
            assert report.slot.available >= 0
            self.turn()

    def test_slots_are_counted_one_by_one(self) -> None:
        feed = self.make()
        before = feed.now()
        self.turn()
        after = feed.now()
        passed = after.index - before.index
        assert passed >= 1
        assert abs(after.slot_began - before.slot_began - passed * before.slot_s) < 1e-3

    def test_history_ends_before_the_present_slot(self) -> None:
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
        # The feed may have gone on between the calls.
        for present in range(last, latest + 1):
            first = present - history.slots
            told = {first + number: history.slot(number) for number in range(history.slots)}
            if all(told[index] == slot for index, slot in seen.items() if index in told):
                break
        else:
            raise AssertionError(f"{told} is not what was seen: {seen}")

    def test_history_is_no_longer_than_asked_for(self) -> None:
        feed = self.make()
        self.turn()
        self.turn()
        assert feed.history(0) is None
        for slots in (1, 2):
            history = feed.history(slots)
            assert history is not None
            assert history.slots == slots
