"""The live loop around the engine: observe, forecast, decide, act, account, learn."""

from duetune.control.loop import Controller
from duetune.control.world import Books, World

__all__ = ["Books", "Controller", "World"]
