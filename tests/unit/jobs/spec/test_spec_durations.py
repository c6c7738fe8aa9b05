from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic_core import PydanticCustomError

from duetune.jobs.spec.values import (
    DEADLINE,
    DURATION,
    parse_deadline,
    parse_duration,
    written_deadline,
    written_duration,
)


@pytest.fixture
def berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("8h", 8),
        ("90m", 1.5),
        ("90min", 1.5),
        ("2d4h", 52),
        ("2d 4h", 52),
        (" 8 h ", 8),
        ("1w", 168),
        ("1.5h", 1.5),
        ("8H", 8),
        ("1d2h3m", 26.05),
        ("3600s", 1),
        ("PT8H", 8),
        ("P2DT4H", 52),
        ("P1W", 168),
        ("PT1.5H", 1.5),
    ],
)
def test_durations_are_read_as_people_write_them(text, hours):
    assert parse_duration(text) == timedelta(hours=hours)


def test_a_timedelta_is_taken_as_it_is():
    assert parse_duration(timedelta(hours=8)) == timedelta(hours=8)


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "h", "8", "8x", "8 hours", "4h2d", "8h8h", "-8h", "0h", "0s", "P", "PT", "P1M",
        "P1Y", "PT8", "367d", "9999999999h", "999999999w", "8h and more", "１h", "1e3h", "∞", "nan",
        "1ſ", "1w" + " " * 50_000 + "x",
        None, True, [], {}, timedelta(0), timedelta(days=-1), timedelta(days=367),
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(PydanticCustomError) as refused:
        parse_duration(text)
    assert refused.value.context["allowed"] == DURATION


@pytest.mark.parametrize(("number", "hint"), [(8, "8h for 8 hours"), (1.5, "1.5h for 1.5 hours")])
def test_a_bare_number_has_no_unit(number, hint):
    with pytest.raises(PydanticCustomError) as refused:
        parse_deadline(number)
    assert refused.value.context["allowed"] == f"{DEADLINE}; a number needs a unit: write {hint}"


@pytest.mark.parametrize("text", ["1:30", "01:30:00", "12:00"])
def test_hours_and_minutes_have_no_colon(text):
    with pytest.raises(PydanticCustomError) as refused:
        parse_deadline(text)
    allowed = refused.value.context["allowed"]
    assert allowed == f"{DEADLINE}; write hours and minutes as 1h30m"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T18:00Z", datetime(2026, 11, 20, 18, tzinfo=UTC)),
        ("2026-11-20 18:00 UTC", datetime(2026, 11, 20, 18, tzinfo=UTC)),
        ("2026-11-20T18:00:30.5+01:00", datetime(2026, 11, 20, 17, 0, 30, 500_000, tzinfo=UTC)),
        ("2026-11-20 18:00", datetime(2026, 11, 20, 17, tzinfo=UTC)),
        ("2026-07-20 18:00", datetime(2026, 7, 20, 16, tzinfo=UTC)),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_a_moment_without_a_zone_is_local_time(text, moment):
    found = parse_deadline(text)
    assert found == moment
    assert found.tzinfo is not None


@pytest.mark.usefixtures("berlin")
def test_a_local_moment_is_written_with_its_zone():
    assert written_deadline(parse_deadline("2026-07-20 18:00")) == "2026-07-20T18:00:00+02:00"


def test_an_aware_datetime_is_taken_as_it_is():
    moment = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=-5)))
    assert parse_deadline(moment) is moment


def test_a_day_alone_does_not_say_when():
    with pytest.raises(PydanticCustomError) as refused:
        parse_deadline("2026-11-20")
    allowed = refused.value.context["allowed"]
    assert allowed == f"{DEADLINE}; a date needs a time of day"


@pytest.mark.parametrize("text", ["2026-13-20 18:00", "2026-11-20 25:00", "2026-11-20 18:00 CET"])
def test_a_moment_that_does_not_exist_is_refused(text):
    with pytest.raises(PydanticCustomError) as refused:
        parse_deadline(text)
    assert refused.value.context["allowed"].startswith(DEADLINE + " (")


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(hours=8), "8h"),
        (timedelta(days=2, hours=4), "2d4h"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(hours=1, microseconds=1), "1h0.000001s"),
        (timedelta(days=1), "1d"),
    ],
)
def test_durations_are_written_short(duration, text):
    assert written_duration(duration) == text
    assert parse_duration(text) == duration
