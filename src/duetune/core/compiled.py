"""The decorator that compiles a function with Numba; type checkers still see the plain function."""

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
        """Return ``function`` compiled on its first call; the result is kept on disk.

        ``nogil`` is set because the tournament runs jobs on threads. ``fastmath`` is not set
        because batch and step-by-step results must be equal bit for bit. With
        ``NUMBA_DISABLE_JIT=1`` the function stays plain Python for debugging.
        """
        if numba.config.DISABLE_JIT:
            return function
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
        try:
            dispatcher.enable_caching()
        except RuntimeError:
            return dispatcher  # no writable cache folder: every process compiles again
        # Numba recompiles a cached function when its own file changes, but not when it calls a
        # changed function of another file. Without this, an edit of the physics had no effect.
        cache_file = dispatcher._cache._cache_file  # noqa: SLF001 - there is no public way
        cache_file._source_stamp = _sources()  # noqa: SLF001
        return dispatcher

    @functools.cache
    def _sources() -> str:
        """Return a digest of all source files that contain compiled functions."""
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
