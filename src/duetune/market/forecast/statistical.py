"""ARIMA and exponential smoothing, with order and parameters chosen by statsforecast.

A fit takes a tenth of a second, so it is done once in many slots, on a window of the past. In
between the fitted model is carried forward by its own recursion, which takes microseconds.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import MissingExtra

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW_SLOTS = 500
REFIT_SLOTS = 336
FIRST_FIT_SLOTS = 96


def require_statsforecast() -> None:
    """Raise MissingExtra if statsforecast is not installed; called when a model is made."""
    if importlib.util.find_spec("statsforecast") is None:
        raise MissingExtra("forecasting with arima or ets", "forecast")


class _Refitted:
    """The last values of a series and when to fit to them; before the first fit, the last value."""

    def __init__(self) -> None:
        require_statsforecast()
        self._ring = np.zeros(WINDOW_SLOTS)
        self._seen = 0
        self._ready = False

    def observe(self, value: float) -> None:
        """Take the value of a slot, and fit again if it is time; called once per slot."""
        self._ring[self._seen % WINDOW_SLOTS] = value
        self._seen += 1
        since = self._seen - FIRST_FIT_SLOTS
        if since >= 0 and since % REFIT_SLOTS == 0:
            past = np.roll(self._ring, -(self._seen % WINDOW_SLOTS))
            past = past if self._seen >= WINDOW_SLOTS else self._ring[: self._seen].copy()
            # A constant series has nothing to fit.
            self._ready = bool(np.ptp(past) > 1e-9) and self._fit(past)
        elif self._ready:
            self._carry(value)

    def point(self, horizon: int) -> NDArray[np.float64]:
        """Return the expected next ``horizon`` values."""
        if not self._ready:
            return np.full(horizon, self._ring[(self._seen - 1) % WINDOW_SLOTS])
        return self._ahead(horizon)

    def _fit(self, past: NDArray[np.float64]) -> bool:
        """Fit the model to the past; return whether it can be used."""
        raise NotImplementedError

    def _carry(self, value: float) -> None:
        """Move the fitted model one slot ahead."""
        raise NotImplementedError

    def _ahead(self, horizon: int) -> NDArray[np.float64]:
        """Return the fitted model's next ``horizon`` values."""
        raise NotImplementedError


class Arima(_Refitted):
    """The paper's model: up to two own lags, two lags of errors and one difference, by AICc."""

    def __init__(self) -> None:
        super().__init__()
        self._own, self._errors = np.zeros(0), np.zeros(0)
        self._mean, self._difference, self._last = 0.0, 0, 0.0
        self._lags, self._misses = np.zeros(0), np.zeros(0)

    def _fit(self, past: NDArray[np.float64]) -> bool:
        from statsforecast.models import AutoARIMA  # noqa: PLC0415 - takes seconds

        model = AutoARIMA(
            seasonal=False, max_p=2, max_q=2, max_d=1, approximation=True, allowdrift=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fitted = model.fit(past).model_
            except (ValueError, np.linalg.LinAlgError):
                return False
        own, errors, difference = fitted["arma"][0], fitted["arma"][1], fitted["arma"][5]
        coefficients = fitted["coef"]
        self._own = np.array([coefficients[f"ar{lag}"] for lag in range(1, own + 1)])
        self._errors = np.array([coefficients[f"ma{lag}"] for lag in range(1, errors + 1)])
        self._mean = float(coefficients.get("intercept", 0.0))
        self._difference, self._last = difference, float(past[-1])
        changed = np.diff(past, n=difference) - self._mean
        # Latest first.
        self._lags = changed[::-1][:own].copy()
        self._misses = np.asarray(fitted["residuals"], dtype=np.float64)[::-1][:errors].copy()
        return bool(np.isfinite(self._ahead(1)).all())

    def _carry(self, value: float) -> None:
        change = (value - self._last if self._difference else value) - self._mean
        miss = change - self._step(self._lags, self._misses)
        self._lags = np.concatenate(([change], self._lags))[: self._own.size]
        self._misses = np.concatenate(([miss], self._misses))[: self._errors.size]
        self._last = value

    def _ahead(self, horizon: int) -> NDArray[np.float64]:
        lags, misses = self._lags, self._misses
        steps = np.empty(horizon)
        for ahead in range(horizon):
            steps[ahead] = self._step(lags, misses)
            lags = np.concatenate((steps[ahead : ahead + 1], lags))[: self._own.size]
            misses = np.concatenate(([0.0], misses))[: self._errors.size]
        steps += self._mean
        return self._last + np.cumsum(steps) if self._difference else steps

    def _step(self, lags: NDArray[np.float64], misses: NDArray[np.float64]) -> float:
        return float(self._own @ lags + self._errors @ misses)


class Ets(_Refitted):
    """A level with additive errors and, if AICc prefers it, a trend, damped or not."""

    def __init__(self) -> None:
        super().__init__()
        self._level, self._trend = 0.0, 0.0
        self._follow, self._turn, self._damping = 1.0, 0.0, 1.0

    def _fit(self, past: NDArray[np.float64]) -> bool:
        from statsforecast.models import AutoETS  # noqa: PLC0415 - takes seconds

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fitted = AutoETS(season_length=1, model="AZN").fit(past).model_
            except (ValueError, ZeroDivisionError):
                return False
        parameters = np.nan_to_num(np.asarray(fitted["par"][:4], dtype=np.float64))
        trending, damped = fitted["components"][1] != "N", fitted["components"][3] == "D"
        last = fitted["states"][-1]
        self._follow = float(parameters[0])
        self._turn = float(parameters[1]) if trending else 0.0
        self._damping = float(parameters[3]) if damped else 1.0
        self._level, self._trend = float(last[0]), float(last[1]) if trending else 0.0
        return bool(np.isfinite(self._ahead(1)).all())

    def _carry(self, value: float) -> None:
        expected = self._level + self._damping * self._trend
        miss = value - expected
        self._level = expected + self._follow * miss
        self._trend = self._damping * self._trend + self._turn * miss

    def _ahead(self, horizon: int) -> NDArray[np.float64]:
        return self._level + self._trend * np.cumsum(self._damping ** np.arange(1, horizon + 1))
