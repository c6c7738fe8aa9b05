from __future__ import annotations

from types import SimpleNamespace

import pytest

from duetune.jobs.status import JobStatus


@pytest.mark.parametrize(
    ("slot", "now", "words"),
    [
        (40, 90.0, "slot 40 of 40"),
        (41, 101.0, "slot 41, past the deadline by 1 slot"),
        (43, None, "slot 43, past the deadline by 3 slots"),
        (41, 99.0, "slot 41, after the last whole slot before the deadline"),
    ],
)
def test_a_slot_after_the_last_one_says_what_it_is(slot, now, words):
    found = SimpleNamespace(
        slot=slot, deadline_slot=40, now=now, job=SimpleNamespace(deadline_at=100.0)
    )
    assert JobStatus.slot_text.fget(found) == words
