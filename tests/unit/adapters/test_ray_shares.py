"""The shares that Ray's tasks and actors ask for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.adapters.ray import share
from gpushare.adapters.ray.share import request, words
from gpushare.text.units import parse_time


def test_a_fraction_is_counted_by_ray_and_held_by_us():
    assert share(0.3) == {"num_gpus": 0.3, "runtime_env": {"gpushare": {"memory": "30%", "time": "30%"}}}
    asked = share(0.5, memory="8GiB", tenant="a", runtime_env={"pip": ["x"]})
    assert asked["runtime_env"] == {"pip": ["x"], "gpushare": {"memory": "8GiB", "time": "50%", "tenant": "a"}}
    assert share(2)["runtime_env"] == {"gpushare": {"memory": "100%", "time": "100%", "devices": 2}}


@pytest.mark.parametrize("num_gpus", [0, -1, 1.5, 0.0001, math.inf, math.nan])
def test_what_is_no_part_is_refused(num_gpus):
    with pytest.raises(ValueError, match="num_gpus"):
        share(num_gpus)


@given(st.floats(0.001, 1, exclude_max=True))
def test_time_is_what_ray_counts_to_a_thousandth(num_gpus):
    spec = share(num_gpus)["runtime_env"]["gpushare"]
    assert abs(parse_time(spec["time"]) - 1000 * num_gpus) <= 0.5
    assert spec["memory"] == spec["time"]


def test_options_of_the_command():
    spec = {"memory": "8GiB", "time": "300m", "time_limit": "50%", "class": "interactive", "borrow_memory": True}
    found = words(spec)
    assert found == ["--memory=8GiB", "--time=300m", "--time-limit=50%", "--class=interactive", "--borrow-memory"]
    assert request({**spec, "time": 0.3, "grace": 5}) == {**spec, "time": "0.3", "grace_seconds": 5}
    assert words({**spec, "idle_memory": "lend", "idle_after": "5m"})[-2:] == ["--idle-memory=lend", "--idle-after=5m"]
    assert request({**spec, "idle_after": 0.5}) == {**spec, "idle_after_seconds": 0.5}
    assert words({"memory": "-- rm; x", "time": "30%"})[0] == "--memory=-- rm; x"


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("8GiB", "dict"),
        ({"memory": "8GiB"}, "needs time"),
        ({"memory": "8GiB", "time": 1, "socket": "/x"}, "no option socket"),
        ({"memory": ["8GiB"], "time": 1}, "memory is"),
        ({"memory": "8GiB", "time": True}, "time is"),
    ],
)
def test_what_cannot_be_asked_is_refused(spec, match):
    with pytest.raises((ValueError, TypeError), match=match):
        words(spec)
