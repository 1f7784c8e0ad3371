import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import BY_CODE, GpushareError, UsageError
from gpushare.text.units import (
    GIB,
    MIB,
    format_size,
    format_time,
    parse_duration,
    parse_idle_after,
    parse_memory,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * GIB),
        ("8Gi", 8 * GIB),
        ("512MiB", 512 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        ("8 GiB", 8 * GIB),
        ("8G", 8 * GIB),
        ("8GB", 8 * GIB),
        ("8g", 8 * GIB),
        ("8gib", 8 * GIB),
        ("512m", 512 * MIB),
        ("4096B", 4096),
        ("1000000", 1000000),
    ],
)
def test_sizes_people_write(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12 GiBs",
        "-3",
        "NaN",
        "inf",
        "1e9",
        "8iB",
        "0",
        "8",
        "0008192",
        "0GiB",
        "0.1",
        "17TiB",
        "8GiB 8GiB",
        "٣GiB",
        "140%",
        "0" * 61 + "8GiB",
    ],
)
def test_sizes_that_make_no_sense(text):
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("30%", 300),
        ("12.5%", 125),
        ("0.3", 300),
        ("1.0", 1000),
        ("300m", 300),
        ("100%", 1000),
        ("1m", 1),
        ("0", 0),
        ("0%", 0),
        ("0.0", 0),
    ],
)
def test_times_people_write(text, milli):
    assert parse_time(text) == milli


@pytest.mark.parametrize(
    "text", ["", "-3", "140%", "NaN", "1.5", "1", "50", "1001m", "1.23%", "0.0001", "3 percent", ".3"]
)
def test_times_that_make_no_sense(text):
    with pytest.raises(UsageError):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("5m", 300), (" 2 h ", 7200), ("1.5h", 5400), ("0.1", 0.1)]
)
def test_durations_people_write(text, seconds):
    assert parse_idle_after(text) == seconds


@pytest.mark.parametrize("text", ["", "-3", "NaN", "1e3", "5 min", "5M", "m", ".5", "0", "0.05s", "25h", "9" * 65])
def test_durations_that_make_no_sense(text):
    with pytest.raises(UsageError, match="duration"):
        parse_idle_after(text)


def test_memory_as_part_of_a_device():
    assert parse_memory("35%", 1000) == 350
    with pytest.raises(UsageError):
        parse_memory("101%", 1000)


@given(st.integers(10**6, 16 << 40))
def test_plain_bytes_survive(size):
    assert parse_size(str(size)) == size


@given(st.integers(1, 1023))
def test_whole_units_survive_printing(gib):
    assert parse_size(format_size(gib * GIB)) == gib * GIB


@given(st.integers(1, 1000))
def test_times_survive_printing(milli):
    assert parse_time(format_time(milli)) == milli


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(UsageError):
        assert parse_size(text) > 0
    with contextlib.suppress(UsageError):
        assert 0 <= parse_time(text) <= 1000
    with contextlib.suppress(UsageError):
        assert 1 <= parse_duration(text, 1, 60) <= 60


def test_every_error_has_its_own_code():
    kinds = {kind for kind in BY_CODE.values() if kind is not GpushareError}
    assert len({kind.code for kind in kinds}) == len(kinds)
