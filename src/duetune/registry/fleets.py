"""Fleets by name, and the embedded fleet of a home.

The names are the values of ``[site] fleet`` in ``config.toml``; ``feeds`` has those of feeds.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import MarketReport
from duetune.errors import FleetError, InvalidInput
from duetune.files import write_whole
from duetune.fleets.embedded.client import EmbeddedFleet, running_provider, start_provider
from duetune.fleets.embedded.cloud_settings import DEFAULT_PRELOAD, FleetSettings
from duetune.fleets.fleet_file import fleet_files
from duetune.fleets.host import ANSWER_S, AlwaysOn, Connected, FleetHost
from duetune.market.forecast.simple import WEEK_HOURS
from duetune.market.resample import slice_slots
from duetune.registry.engines import FLEET_GROUP, EngineHost
from duetune.registry.markets import SYNTHETIC_SLOTS, market_named, markets_from_file
from duetune.registry.plugins import Kind, Listed
from duetune.settings import EMBEDDED, SiteSettings
from duetune.store.store import made_home, readable_store
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace
    from duetune.core.ports import MarketFeed
    from duetune.settings import Settings

SITE_FILE = "site.json"

FLEETS = (
    Listed(EMBEDDED, "emulated spot and on-demand GPUs on this machine, with a replayed market"),
)


def fleet_named(settings: Settings, site: SiteSettings | None = None) -> FleetHost:
    """Return the host of the fleet that the settings name; called by commands that use the fleet.

    ``site`` starts the embedded fleet on another site than the configured one.
    """
    name = settings.fleet_name
    if name == EMBEDDED:
        return EmbeddedHost(settings, site)
    if (file := fleet_files(settings).get(name)) is not None:
        return EngineHost(settings, file)
    found = KIND.plugged(name, (settings,))
    return AlwaysOn(settings, found) if isinstance(found, Connected) else found


def check_fleet(settings: Settings, name: str) -> None:
    """Refuse a name that is no fleet of the home; called with what users write in job files."""
    files = fleet_files(settings)
    plugged = [each.name for each in KIND.listed() if each.name not in {EMBEDDED, *files}]
    # A plug-in may have arguments behind its name.
    if name not in {EMBEDDED, *files} and name.partition(":")[0] not in plugged:
        raise InvalidInput("fleet", name, f"one of {', '.join((EMBEDDED, *files, *plugged))}")


def fleets_listed() -> tuple[Listed, ...]:
    """Return every fleet that can be named, plug-ins included."""
    return KIND.listed()


def _checked(found: object) -> FleetHost | Connected | None:
    return found if isinstance(found, (Connected, FleetHost)) else None


KIND: Kind[FleetHost | Connected] = Kind(
    "site.fleet",
    FLEET_GROUP,
    FLEETS,
    _checked,
    "a Connected or a FleetHost of duetune.fleets.host",
)


class EmbeddedHost:
    """The ``FleetHost`` of the home's embedded fleet.

    With a ``site`` the fleet is started on that site; a fleet that runs on another site is refused.
    """

    def __init__(self, settings: Settings, site: SiteSettings | None = None) -> None:
        self._settings, self._wanted = settings, site

    def running(self) -> Connected | None:
        """Return the fleet if its provider runs, whether or not it answers just now."""
        found = running_provider(self._settings.fleet)
        return None if found is None else _connected(found)

    def start(self) -> Connected:
        """Return the running fleet as soon as it answers, or start one."""
        if self._wanted is None and (found := self.running()) is not None:
            with suppress(FleetError):
                found.feed.now()
                return found
        return self._start(self.site() if self._wanted is None else self._wanted)

    def revive(self) -> None:
        """Start a fleet that died again on its site; called when the fleet does not answer."""
        if self.running() is None:
            self._start(self._started_on())

    def feed(self) -> MarketFeed:
        """Return the feed of the running fleet, or of the fleet that would be started now.

        ``plan`` and ``amend`` read it, and do not wait long for a fleet that stands still.
        """
        found = running_provider(self._settings.fleet, timeout_s=ANSWER_S)
        return _MarketAtStart(self.site()) if found is None else found

    def site(self) -> SiteSettings:
        """Return the site of the running fleet, or of the fleet that would be started now.

        While jobs are not over it is the site they were started on, else the configured site.
        """
        if self.running() is not None:
            return self._started_on()
        if not (self._settings.fleet / SITE_FILE).is_file():
            return self._settings.site
        with readable_store(self._settings) as store:
            busy = store.active(self._settings.names_in_rows)
            return self._started_on() if busy else self._settings.site

    def _start(self, site: SiteSettings) -> Connected:
        folder = self._settings.fleet
        if site.trace is not None:
            # A later command may run in another folder.
            site = msgspec.structs.replace(site, trace=str(Path(site.trace).absolute()))
        trace = site_market(site)
        made_home(self._settings)
        folder.mkdir(exist_ok=True, mode=0o700)
        fleet = start_provider(
            folder,
            FleetSettings(
                first_slot=history_slots(site, trace),
                wrap=True,
                speed=site.speed,
                grant_delay_s=site.grant_delay_s,
                notice_s=site.notice_s,
                silent_share=site.silent_share,
                on_demand_capacity=site.on_demand_capacity,
                seed=site.seed,
                preload=DEFAULT_PRELOAD if site.warm else "",
            ),
            trace,
        )
        write_whole(folder / SITE_FILE, msgspec.json.encode(site))
        return _connected(fleet)

    def _started_on(self) -> SiteSettings:
        """Return the site that the fleet was last started on; by default the configured one."""
        try:
            content = (self._settings.fleet / SITE_FILE).read_bytes()
            return msgspec.json.decode(content, type=SiteSettings)
        except (OSError, msgspec.MsgspecError):
            return self._settings.site


class _MarketAtStart:
    """The ``MarketFeed`` of a fleet that is not running: its market if it were started now."""

    def __init__(self, site: SiteSettings) -> None:
        self._trace = site_market(site)
        self._first = history_slots(site, self._trace)

    def now(self) -> MarketReport:
        at, slot_s = wall_now(), self._trace.slot_hours * 3600
        return MarketReport(at, self._first, at, slot_s, self._trace.slot(self._first))

    def history(self, slots: int) -> MarketTrace | None:
        known = min(slots, self._first)
        return slice_slots(self._trace, self._first - known, self._first) if known > 0 else None


def site_market(site: SiteSettings) -> MarketTrace:
    """Return the market that the embedded fleet of a site replays."""
    if site.trace is not None:
        return markets_from_file(site.trace, pool=site.pool, slot_hours=site.slot_hours)[0]
    return market_named(
        site.market, seed=site.seed, slot_hours=site.slot_hours, slots=SYNTHETIC_SLOTS
    )


def history_slots(site: SiteSettings, trace: MarketTrace) -> int:
    """Return how many slots are known before the replay begins.

    By default it is one week, but at most half of the trace.
    """
    if site.history_slots is not None:
        if not 0 <= site.history_slots < trace.slots:
            allowed = f"from 0 to {trace.slots - 1}, within the trace of {trace.slots} slots"
            raise InvalidInput("history_slots", site.history_slots, allowed)
        return site.history_slots
    return min(round(WEEK_HOURS / trace.slot_hours), trace.slots // 2)


def _connected(fleet: EmbeddedFleet) -> Connected:
    return Connected(fleet, fleet, fleet.clock, fleet.clock.speed, fleet.clock.interrupt)
