"""Folders that tests read, so that a test file may move without counting its parents."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
ASSETS = TESTS / "assets"
JOURNALS = ASSETS / "journals"
SUPPORT = TESTS / "support"
