"""Fleets and market feeds by name: ``[site] fleet`` and ``[site] feed`` in ``config.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.ports import MarketFeed
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.fleets.host import Connected, FleetHost
    from duetune.settings import Settings, SiteSettings

FLEET_GROUP = "duetune.fleets"
"""The entry point group of fleets. An entry names a factory that takes the settings and the texts
behind the name, and returns a ``Connected`` or a ``FleetHost``.
"""

EMBEDDED = "embedded"

FLEETS = (
    Listed(EMBEDDED, "emulated spot and on-demand GPUs on this machine, with a replayed market"),
)


def fleet_named(settings: Settings, site: SiteSettings | None = None) -> FleetHost:
    """Return the host of the fleet that the settings name; called by commands that use the fleet.

    ``site`` starts the embedded fleet on another site than the configured one.
    """
    from duetune.fleets.host import AlwaysOn, Connected
    from duetune.registry.embedded_fleet import EmbeddedHost

    name = settings.site.fleet.strip()
    if name == EMBEDDED:
        return EmbeddedHost(settings, site)
    found = KIND.plugged(name, (settings,))
    return AlwaysOn(settings, found) if isinstance(found, Connected) else found


def fleets_listed() -> tuple[Listed, ...]:
    """Return every fleet that can be named, plug-ins included."""
    return KIND.listed()


def _checked(found: object) -> FleetHost | Connected | None:
    from duetune.fleets.host import Connected, FleetHost

    return found if isinstance(found, (Connected, FleetHost)) else None


KIND: Kind[FleetHost | Connected] = Kind(
    "site.fleet",
    FLEET_GROUP,
    FLEETS,
    _checked,
    "a Connected or a FleetHost of duetune.fleets.host",
)


FEED_GROUP = "duetune.feeds"
"""The entry point group of market feeds. An entry names a factory that takes the settings and the
texts behind the name, and returns a ``MarketFeed``.
"""

OF_FLEET = "fleet"
"""The name of the fleet's own market feed."""

FEEDS = (
    Listed(
        OF_FLEET, "the fleet's own market; the embedded fleet replays a trace or a synthetic market"
    ),
)


def feed_named(settings: Settings, own: Callable[[], MarketFeed]) -> MarketFeed:
    """Return the market feed that the settings name; ``own`` returns the fleet's feed."""
    name = settings.site.feed.strip()
    return own() if name == OF_FLEET else FEED_KIND.plugged(name, (settings,))


def feeds_listed() -> tuple[Listed, ...]:
    """Return every feed that can be named, plug-ins included."""
    return FEED_KIND.listed()


FEED_KIND: Kind[MarketFeed] = Kind(
    "site.feed",
    FEED_GROUP,
    FEEDS,
    lambda found: found if isinstance(found, MarketFeed) else None,
    "a market feed: now() and history()",
)
