"""The spot market: one slot, a trace over many slots and pools, and a Markov chain."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput, NotFound


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The market in one slot. Prices are dollars per GPU and slot.

    ``available`` is the number of spot GPUs, including those that jobs hold.
    ``free``: the spot GPUs of each machine that nobody holds. A member has all its GPUs on one
    machine, so one GPU each of two machines is no member of two. None where that is unknown.
    """

    spot_price: float
    available: int
    on_demand_price: float
    free: tuple[int, ...] | None = None

    def in_members(self, gpus: int, held: int = 0) -> Slot:
        """Return the market for a job that buys members of ``gpus`` GPUs instead of single ones.

        The job holds ``held`` members already; they are available as long as the GPUs are.
        """
        members = self.available // gpus
        if self.free is not None:
            bought = max(0, self.available - sum(self.free)) // gpus
            room = bought + sum(there // gpus for there in self.free)
            members = min(members, max(held, room))
        return Slot(self.spot_price * gpus, members, self.on_demand_price * gpus)


class Pool(msgspec.Struct, frozen=True):
    """A place where spot GPUs of one type are sold."""

    name: str
    accelerator: str = "GPU"
    zone: str = ""


class MarketWindow(NamedTuple):
    """Consecutive slots of one pool as arrays for compiled code; index 0 is slot 1."""

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]
    on_demand_price: NDArray[np.float64]


class MarketChain(NamedTuple):
    """A market as a Markov chain whose number of GPUs and price change independently.

    State i has number i // P and price i % P, where P is the number of prices.

    ``by_number``, ``by_price``: transition probabilities of the number and of the price.
    ``available``: GPUs of each state. ``spot_price``: dollars per GPU and slot of each state.
    """

    by_number: NDArray[np.float64]
    by_price: NDArray[np.float64]
    available: NDArray[np.int64]
    spot_price: NDArray[np.float64]

    @property
    def transition(self) -> NDArray[np.float64]:
        """Return the matrix whose entry [i, j] is the probability that state j follows state i."""
        return np.asarray(np.kron(self.by_number, self.by_price), dtype=np.float64)


class MarketTrace(msgspec.Struct, frozen=True, eq=False):
    """Prices and availability over time. Arrays have one row per pool and one column per slot.

    Prices are dollars per GPU and slot. ``start`` is when the first slot begins, if known.
    """

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]
    on_demand_price: NDArray[np.float64]
    slot_hours: float = 0.5
    pools: tuple[Pool, ...] = (Pool("default"),)
    start: datetime | None = None
    name: str = "market"

    def in_members(self, gpus: int) -> MarketTrace:
        """Return the market for a job that buys members of ``gpus`` GPUs instead of single ones."""
        return msgspec.structs.replace(
            self,
            spot_price=self.spot_price * gpus,
            available=self.available // gpus,
            on_demand_price=self.on_demand_price * gpus,
        )

    def __post_init__(self) -> None:
        shape = self.spot_price.shape
        if len(shape) != 2 or shape[0] != len(self.pools) or not self.pools:
            raise InvalidInput("spot_price", shape, f"shape ({len(self.pools)} pools, slots)")
        if shape[1] == 0:
            raise InvalidInput("trace", self.name, "at least one slot; this one is empty")
        for field in ("available", "on_demand_price"):
            other = getattr(self, field).shape
            if other != shape:
                raise InvalidInput(field, other, f"the shape of spot_price, {shape}")
        if not self.slot_hours > 0:
            raise InvalidInput("slot_hours", self.slot_hours, "a positive number of hours")
        if self.start is not None and self.start.tzinfo is None:
            raise InvalidInput("start", self.start.isoformat(), "a time with a time zone")
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise InvalidInput("pools", names, "different names")
        for field in ("spot_price", "on_demand_price"):
            self._refuse(field, ~np.isfinite(getattr(self, field)), "a finite price")
        self._refuse("spot_price", self.spot_price < 0, "a price of zero or more")
        self._refuse("on_demand_price", self.on_demand_price <= 0, "a positive price")
        self._refuse("available", self.available < 0, "a count of zero or more")
        for field in ("spot_price", "available", "on_demand_price"):
            # Only our view becomes read-only; the caller's array does not change.
            own = getattr(self, field).view()
            own.setflags(write=False)
            msgspec.structs.force_setattr(self, field, own)

    def _refuse(self, field: str, bad: NDArray[np.bool_], allowed: str) -> None:
        if bad.any():
            pool, slot = (int(index) for index in np.argwhere(bad)[0])
            value = getattr(self, field)[pool, slot].item()
            where = f"{field} in pool {self.pools[pool].name!r} at slot {slot}"
            raise InvalidInput(where, value, allowed)

    @classmethod
    def single(
        cls,
        spot_price: NDArray[np.float64],
        available: NDArray[np.int64],
        on_demand_price: NDArray[np.float64] | float,
        *,
        slot_hours: float = 0.5,
        pool: Pool | None = None,
        start: datetime | None = None,
        name: str = "market",
    ) -> MarketTrace:
        """Return a trace of one pool from one-dimensional series."""
        prices = np.array(spot_price, dtype=np.float64, ndmin=1)
        return cls(
            spot_price=prices[np.newaxis, :],
            available=_whole("available", np.array(available, ndmin=1))[np.newaxis, :],
            on_demand_price=np.array(
                np.broadcast_to(np.asarray(on_demand_price, dtype=np.float64), prices.shape)
            )[np.newaxis, :],
            slot_hours=slot_hours,
            pools=(pool or Pool("default"),),
            start=start,
            name=name,
        )

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return int(self.spot_price.shape[1])

    def pool(self, name: str | None = None) -> MarketTrace:
        """Return the trace of one pool; by default of the first one."""
        names = [pool.name for pool in self.pools]
        if name is not None and name not in names:
            raise NotFound("pool", name, ", ".join(names))
        row = 0 if name is None else names.index(name)
        return msgspec.structs.replace(
            self,
            spot_price=self.spot_price[row : row + 1],
            available=self.available[row : row + 1],
            on_demand_price=self.on_demand_price[row : row + 1],
            pools=(self.pools[row],),
        )

    def slot(self, index: int) -> Slot:
        """Return slot ``index`` (counted from 0) of the first pool."""
        return Slot(
            spot_price=float(self.spot_price[0, index]),
            available=int(self.available[0, index]),
            on_demand_price=float(self.on_demand_price[0, index]),
        )

    def window(self, start: int, slots: int) -> MarketWindow:
        """Return ``slots`` slots of the first pool, beginning with slot ``start`` (from 0)."""
        if not 0 <= start <= self.slots - slots:
            raise InvalidInput(
                "start",
                start,
                f"from 0 to {self.slots - slots}, for {slots} slots (to the hard deadline) "
                f"of the {self.slots} in trace {self.name!r}"
                if slots <= self.slots
                else f"a longer trace: {self.name!r} has {self.slots} slots, the job needs {slots}",
            )
        stop = start + slots
        return MarketWindow(
            spot_price=self.spot_price[0, start:stop],
            available=self.available[0, start:stop],
            on_demand_price=self.on_demand_price[0, start:stop],
        )


def _whole(field: str, numbers: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return ``numbers`` as integers; raise ``InvalidInput`` if one is not whole."""
    values = numbers.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values == np.rint(values)))
    if wrong.any():
        slot = int(np.argmax(wrong))
        raise InvalidInput(f"{field} at slot {slot}", values[slot].item(), "a whole number")
    return values.astype(np.int64)
