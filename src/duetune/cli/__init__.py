"""The ``duetune`` command line: one module per command, or per group of related commands."""

from duetune.cli.app import main

__all__ = ["main"]
