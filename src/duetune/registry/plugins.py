"""Plug-ins: finds, lists and makes what other packages register by entry points.

A plug-in is imported only when its name is used, so a broken plug-in does not disturb the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from duetune.errors import DuetuneError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint

Thing = TypeVar("Thing")


class Listed(NamedTuple):
    """One line of a catalogue: a name, or the form of names, and its meaning."""

    name: str
    meaning: str


class Kind(NamedTuple, Generic[Thing]):
    """A kind of thing that has a name, such as a policy.

    ``field``: the name of the kind in error messages.
    ``group``: the entry point group of plug-ins.
    ``own``: what comes with duetune.
    ``checked``: returns a thing of this kind unchanged, and None for anything else.
    ``shape``: what such a thing must have, in words.
    """

    field: str
    group: str
    own: tuple[Listed, ...]
    checked: Callable[[object], Thing | None]
    shape: str

    def listed(self) -> tuple[Listed, ...]:
        """Return every name that can be used: the built-in ones, then those of plug-ins."""
        others = (Listed(each.name, f"registered by {each.value}") for each in self._points())
        return (*self.own, *others)

    def plugged(self, name: str, given: Sequence[object] = (), *, also: str = "") -> Thing:
        """Return the thing that a plug-in registers as ``name``; called for names not built in.

        ``head:a:b`` calls the factory registered as ``head`` with ``given`` and the texts a and b.
        A registered object that is no factory is returned unchanged. ``also`` is added to the
        message for an unknown name.
        """
        head, *texts = name.strip().split(":")
        point = next((each for each in self._points() if each.name == head), None)
        if point is None:
            names = ", ".join(each.name for each in self.listed())
            raise InvalidInput(self.field, name, f"one of {names}{also}")
        try:
            found = point.load()
            # A class has the attributes of its instances, so the check alone would accept it.
            if isinstance(found, type) or self.checked(found) is None:
                found = found(*given, *texts)
        except DuetuneError:
            raise
        except (Exception, SystemExit) as error:
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            allowed = f"a plug-in that works; {point.value} fails with {problem}"
            raise InvalidInput(self.field, name, allowed) from error
        thing = self.checked(found)
        if thing is None:
            raise InvalidInput(self.field, name, f"{point.value} to return {self.shape}")
        return thing

    def _points(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points

        return sorted(entry_points(group=self.group), key=lambda each: each.name)
