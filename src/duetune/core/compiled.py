"""The one door to the compiler, typed so that mypy still sees the function behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., object])

    def compiled(function: Function) -> Function: ...

else:
    import functools
    import hashlib
    from pathlib import Path

    import numba

    def compiled(function: Callable[..., object]) -> Callable[..., object]:
        """Compile on first call; keep the result on disk for the next process.

        nogil: the tournament runs jobs on threads. No fastmath: batch and step-by-step results
        must be the same bits. With ``NUMBA_DISABLE_JIT=1`` the function stays plain Python, so that
        a debugger can step into it.
        """
        if numba.config.DISABLE_JIT:
            return function
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
        try:
            dispatcher.enable_caching()
        except RuntimeError:
            return dispatcher  # nowhere to write: compile anew in every process
        # Numba renews a cached function when its own file changes, not when a function that it
        # calls in another file does: without this, edited physics would go on as it was.
        cache_file = dispatcher._cache._cache_file  # noqa: SLF001 - there is no public way
        cache_file._source_stamp = _sources()  # noqa: SLF001
        return dispatcher

    @functools.cache
    def _sources() -> str:
        """A digest of all sources that compiled functions come from or call."""
        digest = hashlib.sha256(numba.__version__.encode())
        package = Path(__file__).parent.parent
        paths = [
            path
            for folder in ("core", "market", "policies")
            for path in sorted((package / folder).rglob("*.py"))
        ]
        for path in (*paths, package / "knowledge" / "model" / "forest.py"):
            digest.update(path.read_bytes())
        return digest.hexdigest()
