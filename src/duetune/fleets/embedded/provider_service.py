"""A provider from its order to its end: puts the parts together."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.files import OWNER, write_whole
from duetune.fleets.embedded import processes
from duetune.fleets.embedded.api import Server
from duetune.fleets.embedded.bill_ledger import Ledger
from duetune.fleets.embedded.clock import PROVIDER_FILE, ProviderFile
from duetune.fleets.embedded.opening import Order, open_cloud
from duetune.fleets.embedded.provider import Provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
