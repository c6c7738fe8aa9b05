"""What a provider begins with: the book of those before it closed, the clock set, the market."""

from __future__ import annotations

import math
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.fleets.embedded.bill_ledger import Changed, Opened, read_story
from duetune.fleets.embedded.clock import Anchor
from duetune.fleets.embedded.cloud import Cloud
from duetune.fleets.embedded.cloud_settings import FleetSettings
from duetune.fleets.embedded.replay import MarketReplay
from duetune.market.traces import load_trace, save_trace

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.core.fleet import Node
    from duetune.core.market import MarketTrace
    from duetune.fleets.embedded.bill_ledger import Ledger, Story


class Order(msgspec.Struct, frozen=True):
    """Which fleet is wanted. ``digest`` tells the market's file, ``market`` is its name."""

    settings: FleetSettings
    market: str
    digest: str

    def difference(self, settings: FleetSettings, digest: str) -> str:
        """In which fields another fleet is not the wanted one."""
        fields = [
            name
            for name in FleetSettings.__struct_fields__
            if getattr(self.settings, name) != getattr(settings, name)
        ]
        return ", ".join(fields + ["market"] * (self.digest != digest))


def save_market(folder: Path, market: MarketTrace) -> str:
    """Keeps the first pool of a market in the folder; its digest."""
    draft = folder / f"draft-{secrets.token_hex(8)}.csv"
    save_trace(market.pool(), draft)
    digest = sha256(draft.read_bytes()).hexdigest()[:16]
    draft.rename(_market_file(folder, digest))
    return digest


def open_cloud(folder: Path, order: Order, ledger: Ledger, wall: float) -> tuple[Cloud, Opened]:
    """After a kill, clock and market go on as if nothing had been; the nodes are lost.

    After a stop the market begins anew, at a boundary of the slots as they were, so that no clock
    ever goes back.
    """
    story = read_story(folder)
    settled = _settled(folder, story, ledger)
    opened = story.opened
    if opened is None or story.closed or order.difference(opened.settings, opened.digest):
        opened = _fresh(order, story, wall, _slot_s(folder, order))
    ledger.append([opened])
    cloud = Cloud(replay_of(folder, opened), opened.settings)
    cloud.restore(settled, story.limits, story.cancelled, story.last_at)
    return cloud, opened


def replay_of(folder: Path, opened: Opened) -> MarketReplay:
    file = _market_file(folder, opened.digest)
    if not file.is_file():
        raise InvalidInput("market", opened.market, f"a market that is still in {folder}")
    return MarketReplay(
        load_trace(file, name=opened.market),
        began=opened.began,
        first_slot=opened.settings.first_slot,
        first_index=opened.first_index,
        wrap=opened.settings.wrap,
    )


def _settled(folder: Path, story: Story, ledger: Ledger) -> list[Node]:
    """All nodes there ever were, those that lived when the provider was killed as lost."""
    if story.opened is None or not any(node.state.alive for node in story.nodes.values()):
        return list(story.nodes.values())
    cloud = Cloud(replay_of(folder, story.opened), story.opened.settings)
    cloud.restore(story.nodes.values(), {}, set(), story.last_at)
    ended = {key: record.node for key, record in cloud.changed.items()}
    ledger.append([Changed(node) for node in ended.values()])
    return [ended.get(key, node) for key, node in story.nodes.items()]


def _fresh(order: Order, story: Story, wall: float, slot_s: float) -> Opened:
    before = story.opened
    began, index = float(math.floor(wall)), order.settings.first_slot
    if before is not None:
        present = max(story.last_at, before.anchor.market_time(wall))
        slots = math.ceil((present - before.began) / before.slot_s)
        began = before.began + slots * before.slot_s
        index = before.first_index + slots
    return Opened(
        settings=order.settings,
        market=order.market,
        digest=order.digest,
        anchor=Anchor(wall=wall, market=began, speed=order.settings.speed),
        began=began,
        slot_s=slot_s,
        first_index=index,
    )


def _slot_s(folder: Path, order: Order) -> float:
    return load_trace(_market_file(folder, order.digest)).slot_hours * 3600


def _market_file(folder: Path, digest: str) -> Path:
    return folder / f"market-{digest}.csv"
