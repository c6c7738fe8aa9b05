"""Whether the longer tests were asked for."""

from __future__ import annotations

import os

MORE = "DUETUNE_TEST_MORE" in os.environ
"""True under `make test-more`, which looks further and for longer."""
