"""Finds what the package implements, so that nothing new escapes its suite."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def classes_with(package: ModuleType, *methods: str) -> list[type]:
    """Every concrete class defined in ``package`` that has all these methods."""
    modules = [package]
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        # Some modules run in another environment only, such as actors of Ray.
        with contextlib.suppress(ModuleNotFoundError):
            modules.append(importlib.import_module(each.name))
    found = {
        each
        for module in modules
        for _, each in inspect.getmembers(module, inspect.isclass)
        if each.__module__.startswith(package.__name__)
        and all(callable(getattr(each, method, None)) for method in methods)
        and not getattr(each, "_is_protocol", False)
    }
    return sorted(found, key=lambda each: each.__qualname__)
