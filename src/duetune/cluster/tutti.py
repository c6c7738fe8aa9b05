"""Placeholder until it is written: Sia's program."""

from __future__ import annotations

from duetune.cluster.sia import Sia


class Tutti(Sia, frozen=True):
    @property
    def name(self) -> str:
        return "tutti"
