"""The market of a fleet that others run, with a memory: its controller records every slot.

The memory is the recording of the fleet's pool, the same file that ``duetune market record`` lets
grow. So forecasts and quotes learn from it, across jobs and restarts. Commands that only read use
``RememberingFeed`` on that file.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duetune.errors import FleetError, InvalidInput, NotFound
from duetune.jobs.recordings import RecordingTaken, opened_recording
from duetune.market.feeds.experience import Experience
from duetune.market.feeds.recorded_feed import RememberingFeed
from duetune.market.feeds.recorder import Recorder
from duetune.market.forecast.simple import WEEK_HOURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from duetune.core.fleet import MarketReport, Node
    from duetune.core.market import Pool
    from duetune.core.ports import MarketFeed
    from duetune.market.feeds.recording import Recording

MOST_SLOTS = 20_000
"""The slots that are kept: ten weeks of slots of five minutes, in about 1.5 MB."""

log = logging.getLogger(__name__)


class MarketKeeper(RememberingFeed):
    """The feed of a fleet's controller: it records each slot once, and remembers what is recorded.

    ``nodes`` returns the nodes of all jobs of the fleet. They say how many GPUs there were at
    least, or at most, where the engine cannot count them. A slot that cannot be recorded is a gap
    and a warning; jobs go on. While another process records the pool, that is left to it.
    """

    def __init__(
        self,
        feed: MarketFeed,
        pool: Pool,
        path: Path,
        believed: int,
        nodes: Callable[[], Iterable[Node]],
    ) -> None:
        super().__init__(feed, pool, path, believed)
        self._path, self._nodes = path, nodes
        self._tried: int | None = None
        self._warned = ""

    def now(self) -> MarketReport:
        """Return the present slot, which is in the recording afterwards."""
        report = self.feed.now()
        if report.index != self._tried:
            self._tried = report.index
            self._keep(report)
        return super().now()

    def _keep(self, report: MarketReport) -> None:
        try:
            file = (self._path, self.pool, report.slot_s)
            with opened_recording(*file, wait_s=0.0, anew=True) as recording:
                Recorder(self.feed, recording).once()
                if not report.counted:
                    self._add_experience(report, recording)
                recording.shorten(MOST_SLOTS)
            self._warned = ""
        except RecordingTaken as error:
            log.debug("%s", error)
        except (InvalidInput, NotFound, FleetError) as error:
            if str(error) != self._warned:
                log.warning("the market is not recorded: %s", error)
            self._warned = str(error)

    def _add_experience(self, report: MarketReport, recording: Recording) -> None:
        """Add what our own grants, refusals and losses of the last week say."""
        hours, start = report.slot_s / 3600, recording.start or report.slot_began
        seen = Experience(report.slot_s, start)
        prices = (report.slot.spot_price / hours, report.slot.on_demand_price / hours)
        seen.add_nodes(self._nodes(), report.at, prices)
        present = recording.number_at(report.slot_began)
        first = present - round(WEEK_HOURS / hours)
        found = seen.slots().items()
        recent = {number: slot for number, slot in found if first <= number <= present}
        recording.merge(recent, start)
