"""The command line."""

from duetune.cli.app import main

__all__ = ["main"]
