"""What a GPU usually costs, where nobody says."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from duetune.knowledge.facts.gpus import gpu_name

if TYPE_CHECKING:
    from collections.abc import Mapping

USUAL_PRICES: Mapping[str, float] = MappingProxyType(
    {
        "P100": 0.5,
        "V100": 1.0,
        "V100-32GB": 1.5,
        "T4": 0.4,
        "RTX3090": 0.3,
        "A10": 1.0,
        "A10G": 1.0,
        "A40": 1.0,
        "A6000": 0.8,
        "A100": 1.4,
        "A100-40GB": 1.4,
        "A100-80GB": 1.6,
        "A100-80GB-PCIe": 1.5,
        "L4": 0.6,
        "L40": 0.9,
        "L40S": 1.0,
        "RTX4090": 0.5,
        "RTX5090": 0.7,
        "RTX6000-Ada": 0.9,
        "H100": 3.0,
        "H100-SXM": 3.0,
        "H100-PCIe": 2.5,
        "H200": 4.0,
        "GH200": 2.5,
        "B200": 6.5,
        "MI300X": 2.5,
    }
)
"""Dollars per GPU and hour on demand: round figures between the price lists of many clouds late in
2025. They rank GPUs; what is paid is up to the contract.
"""


def prices_for(
    gpus: tuple[str, ...], given: Mapping[str, float]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The price of each GPU, given or usual, and the GPUs that have the usual one. Those that
    nobody knows a price of are left out.
    """
    known = {gpu_name(name) or name: price for name, price in given.items()}
    found = {name: known.get(name, USUAL_PRICES.get(name)) for name in gpus}
    prices = {name: price for name, price in found.items() if price is not None}
    return prices, tuple(name for name in prices if name not in known)
