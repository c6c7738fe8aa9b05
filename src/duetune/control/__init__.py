"""The live controller: the loop that runs all jobs of a home on a fleet.

It drives ``duetune.engine``, shares GPUs among jobs and learns from jobs that are over. The same
steps in a simulated world are in ``duetune.simulate.episode``.
"""

from duetune.control.connections import Books, World
from duetune.control.controller import Controller

__all__ = ["Books", "Controller", "World"]
