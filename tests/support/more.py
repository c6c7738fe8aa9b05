"""Which of the longer tests were asked for."""

from __future__ import annotations

import os

MORE = "DUETUNE_TEST_MORE" in os.environ
"""True under `make test-more`, which looks further and for longer."""

FLEETS = "DUETUNE_TEST_FLEETS" in os.environ
"""True under `make test-fleets`, which tests the drivers on real engines."""
