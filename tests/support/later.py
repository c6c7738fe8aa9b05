"""Libraries that take seconds to import, imported where a test first uses them.

Every worker imports every file of tests in order to know them; few run those that need torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest


class Later:
    """Has what the module of that name has. What is to be replaced is replaced in the module."""

    __slots__ = ("_name",)

    def __init__(self, name):
        object.__setattr__(self, "_name", name)

    def __getattr__(self, attribute):
        if attribute.startswith(("_", "pytest")):
            raise AttributeError(attribute)  # pytest looks at all that a file has
        return getattr(import_module(self._name), attribute)

    def __setattr__(self, attribute, value):
        raise AttributeError(f"replace '{self._name}.{attribute}' by this name")


def later(name):
    """The module of that name; the tests of a file that needs one which is not here are skipped."""
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"needs {name}", allow_module_level=True)
    return Later(name)
