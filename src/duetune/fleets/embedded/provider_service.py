"""Runs a provider from its ``Order`` to its end: restores the state and puts the parts together."""

from __future__ import annotations

import logging
import math
import os
import threading
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
from duetune.wall_clock import clock_reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from duetune.core.fleet import Node
    from duetune.fleets.embedded.bill_ledger import Story
    from duetune.wall_clock import ClockReading


def serve(folder: Path, order: bytes, ready: Callable[[], None]) -> None:
    """Run the provider of ``folder`` until it is stopped; call ``ready`` once it answers calls."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    wanted = msgspec.json.decode(order, type=Order)
    # This process holds the folder's lock, so processes of other providers are leftovers.
    processes.end_marked(folder)
    os.environ[processes.MARK] = str(folder)
    processes.adopt_orphans()
    with Ledger(folder) as ledger:
        cloud, opened = open_cloud(folder, wanted, ledger, clock_reading())
        provider = Provider(folder, opened, cloud, ledger)
        server = Server(provider, opened.settings.faults)
        provider.url = server.url
        # The thread ends with the process, so it rarely checks (every 60 s) for a shutdown.
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


def open_cloud(
    folder: Path, order: Order, ledger: Ledger, now: ClockReading
) -> tuple[Cloud, Opened]:
    """Return the cloud of a new provider and the ledger line that opens it.

    If the last provider was killed, clock and market continue and its nodes are lost. If it was
    stopped, the market starts again at the next slot boundary, so the clock never goes back.
    """
    story = read_story(folder)
    settled = _settled(folder, story, ledger)
    opened = story.opened
    if opened is None or story.closed or order.difference(opened.settings, opened.digest):
        opened = _new_opening(folder, order, story, now)
    elif not opened.anchor.holds(now):
        # The machine was restarted, and with it the steady clock.
        present = max(story.last_at, opened.anchor.market_time(now))
        anchor = Anchor.at(now, present, opened.anchor.speed)
        opened = msgspec.structs.replace(opened, anchor=anchor)
    ledger.append([opened])
    cloud = Cloud(_replay_of(folder, opened), opened.settings)
    cloud.restore(settled, story.limits, story.cancelled, story.last_at)
    return cloud, opened


def _replay_of(folder: Path, opened: Opened) -> MarketReplay:
    file = market_file(folder, opened.digest)
    if not file.is_file():
        raise InvalidInput("market", opened.market, f"a market whose file is in {folder}")
    return MarketReplay(
        load_trace(file, name=opened.market),
        began=opened.began,
        first_slot=opened.settings.first_slot,
        first_index=opened.first_index,
        wrap=opened.settings.wrap,
    )


def _settled(folder: Path, story: Story, ledger: Ledger) -> list[Node]:
    """Return all nodes of the ledger; nodes alive when the provider was killed are now lost."""
    if story.opened is None or not any(node.state.alive for node in story.nodes.values()):
        return list(story.nodes.values())
    cloud = Cloud(_replay_of(folder, story.opened), story.opened.settings)
    cloud.restore(story.nodes.values(), {}, set(), story.last_at)
    ended = {key: record.node for key, record in cloud.changed.items()}
    ledger.append([Changed(node) for node in ended.values()])
    return [ended.get(key, node) for key, node in story.nodes.items()]


def _new_opening(folder: Path, order: Order, story: Story, now: ClockReading) -> Opened:
    """Return the line that starts the market again, after the time of all earlier providers."""
    before = story.opened
    began, index = float(math.floor(now.wall)), order.settings.first_slot
    if before is not None:
        present = max(story.last_at, before.anchor.market_time(now))
        slots = math.ceil((present - before.began) / before.slot_s)
        began = before.began + slots * before.slot_s
        index = before.first_index + slots
    return Opened(
        settings=order.settings,
        market=order.market,
        digest=order.digest,
        anchor=Anchor.at(now, began, order.settings.speed),
        began=began,
        slot_s=load_trace(market_file(folder, order.digest)).slot_hours * 3600,
        first_index=index,
    )
