from __future__ import annotations

import pytest

from support.elastic_job import Nursery


@pytest.fixture(scope="session")
def nursery():
    """One for all: what it loads takes eight seconds."""
    made = Nursery()
    yield made
    made.close()
