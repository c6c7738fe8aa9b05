"""Published price lists of GPU clouds as a market source, through gpuhunt (``duetune[offers]``).

A list has the prices of now: no history, and no word on how many GPUs there are.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from duetune.core.market import Pool
from duetune.errors import FleetError, InvalidInput, MissingExtra
from duetune.market.feeds.live_feed import Quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROVIDERS = ("aws", "azure", "cloudrift", "gcp", "lambdalabs", "nebius", "oci", "runpod", "verda")
"""The providers whose lists gpuhunt publishes; they need no credentials."""
ANSWER_S = 60.0
LOCAL = "GPUHUNT_CATALOG_DIR"
"""gpuhunt's variable for a folder of downloaded lists, which are then read instead."""


class Offer(Protocol):
    """The fields of gpuhunt's offers that are used here; ``price`` is per instance and hour."""

    location: str
    price: float
    gpu_count: int
    spot: bool


class Wanted(NamedTuple):
    """The offers to look at; ``region`` None means all regions."""

    provider: str
    gpu: str
    region: str | None = None
    memory_gb: float | None = None


class PriceLists:
    """The ``MarketSource`` of one provider and GPU: the lowest prices per GPU, over all sizes."""

    def __init__(
        self, wanted: Wanted, offers: Callable[[Wanted], Sequence[Offer]] | None = None
    ) -> None:
        if wanted.provider not in PROVIDERS:
            allowed = f"one of {', '.join(PROVIDERS)}"
            raise InvalidInput("provider of the offers feed", wanted.provider, allowed)
        self._wanted = wanted
        self._offers = offers or _published()
        place = wanted.region or wanted.provider
        self.pool = Pool(f"{wanted.provider}/{wanted.gpu}", wanted.gpu, place)
        if wanted.region is not None:
            self.pool = Pool(f"{self.pool.name}/{place}", wanted.gpu, place)

    def quote(self, began: float) -> Quote:  # noqa: ARG002  a list has only the prices of now
        """Return the lowest spot and on-demand price of the lists."""
        found = [each for each in self._answer() if each.gpu_count > 0]
        if self._wanted.region is not None:
            here = [each for each in found if each.location.startswith(self._wanted.region)]
            if found and not here:
                known = ", ".join(sorted({each.location for each in found})[:12])
                raise InvalidInput("region of the offers feed", self._wanted.region, known)
            found = here
        lowest = [
            min((each.price / each.gpu_count for each in found if each.spot is spot), default=None)
            for spot in (True, False)
        ]
        spot, on_demand = lowest
        if spot is None or on_demand is None:
            missing = "spot" if spot is None else "on demand"
            asked = f"{self._wanted.provider} {self._wanted.gpu}"
            allowed = f"a GPU that the provider lists; this one is not sold {missing}"
            raise InvalidInput("GPU of the offers feed", asked, allowed)
        return Quote(spot, on_demand)

    def past(self, first: float, slots: int, slot_s: float) -> Sequence[Quote | None]:  # noqa: ARG002
        """Return nothing: the lists have no history."""
        return ()

    def _answer(self) -> Sequence[Offer]:
        """Return the offers; gpuhunt has no time-out of its own, so it is asked in a thread."""
        answers: list[Sequence[Offer]] = []
        failures: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(self._offers(self._wanted))
            except Exception as error:  # noqa: BLE001  gpuhunt's providers raise what they like
                failures.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWER_S)
        if answers:
            return answers[0]
        if failures:
            raise FleetError(f"the price lists cannot be read: {type(failures[0]).__name__}")
        raise FleetError(f"the price lists have not come within {ANSWER_S:g} s")


def _published() -> Callable[[Wanted], Sequence[Offer]]:
    """Return what asks gpuhunt, which downloads the lists and keeps them for 15 minutes."""
    try:
        import gpuhunt  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        raise MissingExtra("the offers feed", "offers") from None
    # Without a handler gpuhunt would print a traceback for every list that is not reached.
    logging.getLogger("gpuhunt").addHandler(logging.NullHandler())
    catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=LOCAL not in os.environ)

    def ask(wanted: Wanted) -> Sequence[Offer]:
        found: Sequence[Offer] = catalog.query(
            provider=wanted.provider,
            gpu_name=wanted.gpu,
            min_gpu_memory=wanted.memory_gb,
            max_gpu_memory=wanted.memory_gb,
        )
        return found

    return ask
