"""A provider from its order to its end: puts the parts together."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.files import OWNER, write_whole
from duetune.fleets.embedded import processes
from duetune.fleets.embedded.api import Server
from duetune.fleets.embedded.bill_ledger import Changed, Ledger, Opened, read_story
from duetune.fleets.embedded.clock import PROVIDER_FILE, Anchor, ProviderFile
from duetune.fleets.embedded.cloud import Cloud
from duetune.fleets.embedded.cloud_settings import Order
from duetune.fleets.embedded.provider import Provider
from duetune.fleets.embedded.replay import MarketReplay, market_file
from duetune.market.traces import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from duetune.core.fleet import Node
    from duetune.fleets.embedded.bill_ledger import Story


def serve(folder: Path, order: bytes, ready: Callable[[], None]) -> None:
    """``ready`` is called once calls are answered; returns when the provider was stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    wanted = msgspec.json.decode(order, type=Order)
    # Whoever holds the folder's lock is its only provider: what others have started is left over.
    processes.end_marked(folder)
    os.environ[processes.MARK] = str(folder)
    processes.adopt_orphans()
    with Ledger(folder) as ledger:
        cloud, opened = open_cloud(folder, wanted, ledger, time.time())
        provider = Provider(folder, opened, cloud, ledger)
        server = Server(provider, opened.settings.faults)
        provider.url = server.url
        # It ends with the process; it looks seldom whether it should end before.
        threading.Thread(target=server.serve_forever, args=(60.0,), daemon=True).start()
        described = ProviderFile(
            url=server.url,
            pid=os.getpid(),
            token=provider.token,
            market=opened.market,
            digest=opened.digest,
            slot_s=opened.slot_s,
            anchor=opened.anchor,
            settings=opened.settings,
        )
        write_whole(
            folder / PROVIDER_FILE, msgspec.json.encode(described), durable=True, mode=OWNER
        )
        ready()
        provider.run()
        (folder / PROVIDER_FILE).unlink(missing_ok=True)


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
    file = market_file(folder, opened.digest)
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
    return load_trace(market_file(folder, order.digest)).slot_hours * 3600
