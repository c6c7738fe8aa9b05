"""GPUs by their data sheets: memory, speed, power and the usual price.

This module also maps the names that drivers, clusters and clouds use to the names used here.
"""

from __future__ import annotations

import functools
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


MIB = 2**20


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU.

    - ``memory_gb``: memory as sold, such as 80.
    - ``memory_mib``: memory that the driver reports.
    - ``tflops``: dense 16-bit matrix arithmetic, without sparsity.
    - ``bandwidth_gb_s``: bandwidth of its memory.
    - ``link_gb_s``: bandwidth between two GPUs of a node, in one direction.
    - ``power_w``: power limit.
    - ``usual_price``: dollars per GPU and hour on demand, see ``USUAL_PRICES``.
    - ``bf16``: whether the GPU computes in bfloat16.
    """

    memory_gb: float
    memory_mib: int
    tflops: float
    bandwidth_gb_s: float
    link_gb_s: float
    power_w: float
    usual_price: float
    bf16: bool = True

    @property
    def capacity(self) -> float:
        """Return the memory in bytes, as the driver reports it."""
        return float(self.memory_mib * MIB)


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "P100": Gpu(16, 16280, 18.7, 732, 12, 250, 0.5, bf16=False),
        "V100": Gpu(16, 16384, 125, 900, 150, 300, 1.0, bf16=False),
        "V100-32GB": Gpu(32, 32768, 125, 900, 150, 300, 1.5, bf16=False),
        "T4": Gpu(16, 15360, 65, 320, 12, 70, 0.4, bf16=False),
        "RTX3090": Gpu(24, 24576, 71, 936, 12, 350, 0.3),
        "A10": Gpu(24, 23028, 125, 600, 12, 150, 1.0),
        "A10G": Gpu(24, 23028, 70, 600, 12, 300, 1.0),
        "A40": Gpu(48, 46068, 149.7, 696, 12, 300, 1.0),
        "A6000": Gpu(48, 49140, 154.8, 768, 12, 300, 0.8),
        "A100": Gpu(40, 40960, 312, 1555, 300, 400, 1.4),
        "A100-40GB": Gpu(40, 40960, 312, 1555, 300, 400, 1.4),
        "A100-80GB": Gpu(80, 81920, 312, 2039, 300, 400, 1.6),
        "A100-80GB-PCIe": Gpu(80, 81920, 312, 1935, 25, 300, 1.5),
        "L4": Gpu(24, 23034, 121, 300, 12, 72, 0.6),
        "L40": Gpu(48, 46068, 181, 864, 20, 300, 0.9),
        "L40S": Gpu(48, 46068, 362, 864, 20, 350, 1.0),
        "RTX4090": Gpu(24, 24564, 165.2, 1008, 12, 450, 0.5),
        "RTX5090": Gpu(32, 32607, 209.5, 1792, 25, 575, 0.7),
        "RTX6000-Ada": Gpu(48, 49140, 364, 960, 20, 300, 0.9),
        "H100": Gpu(80, 81559, 989, 3350, 450, 700, 3.0),
        "H100-SXM": Gpu(80, 81559, 989, 3350, 450, 700, 3.0),
        "H100-PCIe": Gpu(80, 81559, 756, 2000, 50, 350, 2.5),
        "H200": Gpu(141, 143771, 989, 4800, 450, 700, 4.0),
        "GH200": Gpu(96, 97871, 989, 4000, 450, 700, 2.5),
        "B200": Gpu(180, 183359, 2250, 7700, 900, 1000, 6.5),
        "MI300X": Gpu(192, 196592, 1307, 5300, 448, 750, 2.5),
    }
)

_BY_NAME = {name.casefold(): name for name in GPUS}
_NOISE = frozenset(
    (
        *("nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "generation", "gpu", "oam"),
        *("hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)
_SEPARATORS = re.compile(r"[-_/ ]+")
_SOCKET = re.compile(r"sxm\d?")
_CARD = frozenset(("pcie", "nvl"))
_MEMORY = re.compile(r"(\d{1,3})gi?b?")


@functools.lru_cache(maxsize=1024)
def gpu_name(text: str) -> str | None:
    """Return the name used here for what a driver, a cluster or a cloud calls a GPU.

    Returns None if part of the text is not understood, such as a fraction of a GPU or a memory size
    that the GPU does not have.
    """
    plain = "-".join(_SEPARATORS.split(text.strip().casefold()))
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    words = [word for word in plain.split("-") if word not in _NOISE]
    sizes = [int(found[1]) for found in map(_MEMORY.fullmatch, words) if found]
    plug = any(word in _CARD for word in words)
    kind = "-".join(
        word
        for word in words
        if word not in _CARD and not _MEMORY.fullmatch(word) and not _SOCKET.fullmatch(word)
    )
    kind = kind.replace("rtx-a", "a").replace("rtx-", "rtx")
    same = [name for name in GPUS if name.casefold() == kind or _kind(name) == kind]
    if len(sizes) > 1 or not same:
        return None
    fitting = _fitting(same, sizes[0] if sizes else None)
    cards = [name for name in fitting if name.endswith("-PCIe")]
    return next(iter(cards if plug and cards else fitting), None)


def _fitting(names: list[str], memory_gb: int | None) -> list[str]:
    """Return the names with that memory size.

    If a GPU is sold with one size only, a larger size is accepted too: such variants exist, and
    assuming less memory is safe.
    """
    if memory_gb is None:
        return names
    fitting = [name for name in names if GPUS[name].memory_gb == memory_gb]
    fitting.sort(key=lambda name: f"-{memory_gb}GB" not in name)
    one = len({GPUS[name].memory_gb for name in names}) == 1
    return names if one and memory_gb > GPUS[names[0]].memory_gb else fitting


def _kind(name: str) -> str:
    """Return a name without memory and form factor: ``a100`` for ``A100-80GB-PCIe``."""
    first, *rest = name.casefold().split("-")
    return "-".join(
        (first, *(word for word in rest if word not in {"pcie", "sxm"} and not word.endswith("gb")))
    )


def gpu_named(text: str) -> Gpu | None:
    """Return the data sheet of a GPU by any of its names, or None if it is not known."""
    name = gpu_name(text)
    return None if name is None else GPUS[name]


USUAL_PRICES: Mapping[str, float] = MappingProxyType(
    {name: gpu.usual_price for name, gpu in GPUS.items()}
)
"""Dollars per GPU and hour on demand: round figures from the price lists of many clouds in late
2025. They serve to rank GPUs when no price is given; they are not what a contract charges.
"""


def prices_for(
    gpus: tuple[str, ...], given: Mapping[str, float]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the price of each GPU, and the GPUs for which the usual price was taken.

    Prices in ``given`` come first. GPUs without any price are left out. Called when a user asks for
    a recommendation.
    """
    known = {gpu_name(name) or name: price for name, price in given.items()}
    found = {name: known.get(name, USUAL_PRICES.get(name)) for name in gpus}
    prices = {name: price for name, price in found.items() if price is not None}
    return prices, tuple(name for name in prices if name not in known)
