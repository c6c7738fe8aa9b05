"""Market feeds by name: the values of ``[site] feed`` in ``config.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.ports import MarketFeed
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.settings import Settings

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
    return own() if name == OF_FLEET else KIND.plugged(name, (settings,))


def feeds_listed() -> tuple[Listed, ...]:
    """Return every feed that can be named, plug-ins included."""
    return KIND.listed()


KIND: Kind[MarketFeed] = Kind(
    "site.feed",
    FEED_GROUP,
    FEEDS,
    lambda found: found if isinstance(found, MarketFeed) else None,
    "a market feed: now() and history()",
)
