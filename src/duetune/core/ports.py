"""What can be plugged in: two verbs each. Conformance suites are in ``duetune.testing``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from duetune.core.decision import Decision, Forecast, View
    from duetune.core.market import Slot


@runtime_checkable
class Policy(Protocol):
    """A value without clock, input or output; called once at the start of every slot."""

    @property
    def name(self) -> str: ...

    def decide(self, view: View) -> Decision: ...


@runtime_checkable
class Forecaster(Protocol):
    """``observe`` is called once per slot with the market as it is, then ``forecast``."""

    def observe(self, slot: Slot) -> None: ...

    def forecast(self, horizon: int) -> Forecast: ...


@runtime_checkable
class Selector(Protocol):
    """``choose`` before a job, ``learn`` after it, with every policy's (counterfactual) utility."""

    def choose(self, random: np.random.Generator) -> int: ...

    def learn(self, utilities: NDArray[np.float64]) -> None: ...
