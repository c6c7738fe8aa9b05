"""The one door to the compiler, typed so that mypy still sees the function behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., object])

    def compiled(function: Function) -> Function: ...

else:
    import numba

    # nogil: the tournament runs jobs on threads. cache: one compilation per installation.
    # No fastmath: batch and step-by-step results must be the same bits.
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
