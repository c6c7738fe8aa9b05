"""Market feeds by name: what ``[site] feed`` in ``config.toml`` may say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.ports import MarketFeed
    from duetune.settings import Settings

FEED_GROUP = "duetune.feeds"
"""The entry point group in which others register market feeds: a name for a factory that takes the
settings and the texts behind the name, and returns a ``MarketFeed``.
"""

OF_FLEET = "fleet"

FEEDS = (
    Listed(
        OF_FLEET, "the fleet's own market; the embedded fleet replays a trace or a synthetic one"
    ),
)


def feed_named(settings: Settings, own: Callable[[], MarketFeed]) -> MarketFeed:
    """Return the market feed that the settings name; ``own`` gives that of the fleet."""
    name = settings.site.feed.strip()
    return own() if name == OF_FLEET else KIND.plugged(name, (settings,))


def feeds_listed() -> tuple[Listed, ...]:
    """Return every feed that can be named, those registered by others included."""
    return KIND.listed()


def _checked(found: object) -> MarketFeed | None:
    from duetune.core.ports import MarketFeed

    return found if isinstance(found, MarketFeed) else None


KIND: Kind[MarketFeed] = Kind(
    "site.feed", FEED_GROUP, FEEDS, _checked, "a market feed: now() and history()"
)
