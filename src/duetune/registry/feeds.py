"""Market feeds by name, and the recording of each pool in a home.

The names are the values of ``[site] feed`` in ``config.toml``. Arguments stand behind the name,
separated by colons, as those of plug-ins do: first the places, then options as ``key=value``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.market import Pool
from duetune.core.ports import MarketFeed
from duetune.errors import InvalidInput
from duetune.market.feeds.recording import recording_file
from duetune.registry.plugins import Kind, Listed
from duetune.settings import EMBEDDED, OF_FLEET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.market.feeds.live_feed import MarketSource
    from duetune.settings import Settings

FEED_GROUP = "duetune.feeds"
"""The entry point group of market feeds. An entry names a factory that takes the settings and the
texts behind the name, and returns a ``MarketFeed``.
"""

RECORDED = "recorded"

FEEDS = (
    Listed(
        OF_FLEET, "the fleet's own market; the embedded fleet replays a trace or a synthetic market"
    ),
    Listed(
        "aws:REGION:TYPE",
        "AWS spot prices; options zone=ZONE, on_demand=USD, available=GPUS or scores, gpus=N; "
        "needs duetune[aws]",
    ),
    Listed(
        "offers:PROVIDER:GPU",
        "published price lists; options region=REGION, memory=GB, available=GPUS; needs "
        "duetune[offers]",
    ),
    Listed(
        "recorded:FILE",
        "a trace that `duetune market record` lets grow; options pool=NAME, available=GPUS, "
        "hold=HOURS",
    ),
)

DEFAULT_SLOT_HOURS = 0.5


def feed_named(settings: Settings, own: Callable[[], MarketFeed]) -> MarketFeed:
    """Return the market feed that the settings name; ``own`` returns the fleet's feed."""
    name = settings.site.feed.strip()
    if name == OF_FLEET:
        return own()
    head, *texts = name.split(":")
    make = _MAKERS.get(head)
    if make is None:
        return FEED_KIND.plugged(name, (settings,))
    site = settings.site
    if settings.fleet_name == EMBEDDED and site.speed != 1:
        allowed = f"{OF_FLEET}: the embedded fleet runs {site.speed:g} times as fast as the world"
        raise InvalidInput("site.feed", name, allowed)
    return make(settings, texts)


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


def pool_of(settings: Settings, feed: MarketFeed) -> Pool:
    """Return the pool that a feed of the settings reports on; its recording has that name."""
    pool = getattr(feed, "pool", None)
    if isinstance(pool, Pool):
        return pool
    name = settings.site.feed.strip().partition(":")[0]
    if name == OF_FLEET:
        name = settings.fleet_name.replace(":", "-")
    return Pool(name, settings.site.accelerator or "GPU")


def recording_of(settings: Settings, pool: Pool) -> Path:
    """Return the file in which the home records a pool, whether or not it exists."""
    return recording_file(settings.home, pool)


class _Arguments:
    """The texts behind a feed's name: places first, then options as ``key=value``."""

    def __init__(
        self, form: str, texts: Sequence[str], places: int, options: Sequence[str]
    ) -> None:
        given = [text for text in texts if "=" not in text]
        pairs = [text.partition("=") for text in texts if "=" in text]
        self.places, self._options = given, {key.strip(): value for key, _, value in pairs}
        told = ":".join((form.partition(":")[0], *texts))
        if len(given) != places or not all(text.strip() for text in given):
            raise InvalidInput("site.feed", told, form)
        unknown = sorted(set(self._options) - set(options))
        if unknown:
            raise InvalidInput("site.feed option", unknown[0], f"one of {', '.join(options)}")

    def text(self, key: str) -> str | None:
        return self._options.get(key)

    def whole(self, key: str, words: str) -> int | None:
        number = self.number(key, words)
        if number is not None and number != round(number):
            raise InvalidInput(f"site.feed {key}", self._options[key], words)
        return None if number is None else round(number)

    def number(self, key: str, words: str) -> float | None:
        text = self._options.get(key)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise InvalidInput(f"site.feed {key}", text, words)
        return number


_GPUS = "a number of GPUs, 1 or more"


def _aws(settings: Settings, texts: Sequence[str]) -> MarketFeed:
    from duetune.market.feeds.aws_market import AwsMarket
    from duetune.market.instance_types import aws_instance

    options = ("zone", "on_demand", "available", "gpus")
    given = _Arguments("aws:REGION:TYPE and options", texts, 2, options)
    region, instance_type = given.places
    gpus = given.whole("gpus", _GPUS)
    try:
        accelerator = aws_instance(instance_type, gpus).accelerator
    except InvalidInput:
        allowed = "a type of the AWS instance table, or its GPUs as gpus=N"
        raise InvalidInput("site.feed", instance_type, allowed) from None
    on_demand = given.number("on_demand", "dollars per GPU-hour")
    if on_demand is None:
        on_demand = _usual_price(accelerator)
    scores = given.text("available") == "scores"
    believed = settings.site.max_gpus
    if not scores:
        believed = given.whole("available", f"scores, or {_GPUS}") or believed
    source = AwsMarket(
        region,
        instance_type,
        on_demand,
        zone=given.text("zone"),
        gpus_per_instance=gpus,
        most_gpus=believed if scores else None,
    )
    return _live(settings, source, believed)


def _usual_price(accelerator: str) -> float:
    """Return the usual on-demand price of a GPU, which the user can replace by the real one."""
    from duetune.knowledge.facts.gpus import gpu_named

    gpu = gpu_named(accelerator)
    if gpu is None:
        allowed = f"dollars per GPU-hour; no usual price of {accelerator} is known"
        raise InvalidInput("site.feed on_demand", None, allowed)
    return gpu.usual_price


def _offers(settings: Settings, texts: Sequence[str]) -> MarketFeed:
    from duetune.market.feeds.price_lists import PriceLists, Wanted

    given = _Arguments(
        "offers:PROVIDER:GPU and options", texts, 2, ("region", "memory", "available")
    )
    provider, gpu = given.places
    memory = given.number("memory", "gigabytes of one GPU")
    believed = given.whole("available", _GPUS) or settings.site.max_gpus
    source = PriceLists(Wanted(provider.lower(), gpu, given.text("region"), memory))
    return _live(settings, source, believed)


def _recorded(settings: Settings, texts: Sequence[str]) -> MarketFeed:
    from duetune.market.feeds.recorded_feed import HOLD_HOURS, RecordedFeed

    given = _Arguments("recorded:FILE and options", texts, 1, ("pool", "available", "hold"))
    believed = given.whole("available", _GPUS) or settings.site.max_gpus
    hold = given.number("hold", "hours") or HOLD_HOURS
    path = settings.home / Path(given.places[0]).expanduser()
    return RecordedFeed(path, given.text("pool"), believed, hold)


def _live(settings: Settings, source: MarketSource, believed: int) -> MarketFeed:
    """Return the feed over a source, which remembers by the recording of its pool."""
    from duetune.market.feeds.live_feed import LiveFeed
    from duetune.market.feeds.recorded_feed import RememberingFeed

    slot_s = (settings.site.slot_hours or DEFAULT_SLOT_HOURS) * 3600
    feed = LiveFeed(source, slot_s, believed)
    return RememberingFeed(feed, feed.pool, recording_of(settings, feed.pool), believed)


_MAKERS = {"aws": _aws, "offers": _offers, RECORDED: _recorded}
