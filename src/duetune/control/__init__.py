"""The live loop around the engine: observe, forecast, decide, act, account, learn."""

from duetune.control.connections import Books, World
from duetune.control.controller import Controller

__all__ = ["Books", "Controller", "World"]
