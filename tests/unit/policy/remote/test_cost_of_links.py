"""What a link costs a program, and how that is told."""

from math import inf

import pytest

from gpushare.policy.remote import predict, told
from gpushare.policy.remote.predict import Path, Work

G = 1e9
NEAR, FAR = Path(85, 9.6 * G, 9.6 * G), Path(1100, 2 * G, 1 * G)


@pytest.mark.parametrize(
    ("calls", "size_in", "size_out", "path", "seconds"),
    [
        (0, 0, 0, NEAR, 0.0),
        (1, 0, 0, Path(70, G, G), 100e-6),
        (1000, 0, 0, Path(970, G, G), 1.0),
        (0, 125_000_000, 0, Path(10, 1 * G, 8 * G), 1.0),
        (0, 0, 125_000_000, Path(10, 1 * G, 8 * G), 0.125),
        (100, 10_000_000, 20_000_000, Path(170, 8 * G, 4 * G), 0.02 + 0.01 + 0.04),
        (1, 1, 0, Path(10, 0, G), inf),
        (0, 0, 1, Path(10, G, 0), inf),
        (1, 0, 0, Path(70, 0, 0), 100e-6),
    ],
)
def test_time_that_a_link_adds(calls, size_in, size_out, path, seconds):
    assert predict.added_seconds(Work(calls, size_in, size_out), path) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("local_ms", "kernels_rtt_us", "measured_ms"),
    [(20.1, 7.5, 21.2), (20.1, 1000, 22.1), (20.1, 5000, 26.0), (50.5, 7.5, 52.4), (50.5, 1000, 53.3)],
)
def test_steps_that_were_measured(local_ms, kernels_rtt_us, measured_ms):
    """A step of kernels that takes 1 MiB and gives 4 bytes, with one wait, on 8 Gbit/s."""
    found = predict.slowdown(Work(1, 1 << 20, 4), local_ms / 1e3, Path(kernels_rtt_us, 8 * G, 8 * G))
    assert local_ms * (1 + found) == pytest.approx(measured_ms, rel=0.05)


def test_a_prediction_grows_with_the_time_that_it_is_of():
    once, twice = Work(10, 1000, 500), Work(20, 2000, 1000)
    assert predict.slowdown(twice, 2, NEAR) == pytest.approx(predict.slowdown(once, 1, NEAR))
    assert predict.slowdown(Work(1, 1, 1), 0, NEAR) == 0


def test_cost_of_a_run_is_what_was_predicted_for_it():
    work, local = Work(500, 40_000_000, 8_000_000), 4.0
    predicted = predict.slowdown(work, local, FAR)
    found = predict.cost(work, local * (1 + predicted), FAR)
    assert found.part == pytest.approx(predicted)
    assert found.seconds == pytest.approx(predicted * local)


def test_a_link_costs_no_more_than_the_whole_run():
    assert predict.cost(Work(1_000_000, 0, 0), 2.0, FAR) == (2.0, inf)
    assert predict.cost(Work(0, 0, 0), 0.0, FAR) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0, "+0 %"),
        (0.0004, "+0 %"),
        (0.014, "+1.4 %"),
        (0.0996, "+10 %"),
        (0.13, "+13 %"),
        (2.5, "+250 %"),
        (11.4, "12 times as long"),
        (inf, "it never ends"),
    ],
)
def test_parts_on_top(part, text):
    assert told.more(part) == text


def test_one_node_is_one_line():
    lines = told.predictions(Work(1200, 300e6, 0), 10, [told.Node("gpu1", NEAR)])
    assert lines == ["120 synchronising calls/s, 30 MB/s: +3.9 % on gpu1 (85 us, 9.6 Gbit/s)"]


def test_the_best_of_several_nodes_is_first_and_the_unknown_last():
    nodes = [told.Node("gpu9", FAR), told.Node("gpu5", None, "it does not answer"), told.Node("gpu1", NEAR)]
    assert told.predictions(Work(0.5, 0, 0), 0.1, nodes) == [
        "5 synchronising calls/s, 0 B/s",
        "+0.1 % on gpu1 (85 us, 9.6 Gbit/s)",
        "+0.6 % on gpu9 (1.1 ms, 1 Gbit/s)",
        "not known on gpu5: it does not answer",
    ]


@pytest.mark.parametrize(
    ("work", "seconds", "text"),
    [
        (Work(2000, 1 << 30, 0), 12.0, "link 85 us, 1GiB: cost 10 % (1.1 s)"),
        (Work(10, 4096, 0), 5.0, "link 85 us, 4KiB: cost 0 % (1 ms)"),
        (Work(10**9, 0, 0), 5.0, "link 85 us, 0B: cost most of its time (5.0 s)"),
    ],
)
def test_what_a_link_cost(work, seconds, text):
    assert told.link_cost(work, seconds, NEAR) == text


@pytest.mark.parametrize(
    ("work", "link", "part", "advice"),
    [
        (Work(10, 0, 0), NEAR, "", ""),
        (Work(1000, 0, 0), NEAR, "13 %", "CUDA graphs"),
        (Work(10, 100_000_000, 0), NEAR, "9.2 %", "copy less"),
        (Work(10**7, 0, 0), NEAR, "many times slower", "CUDA graphs"),
        (Work(10, 100_000_000, 0), Path(85, inf, inf), "", ""),
    ],
)
def test_reason_why_a_program_is_slow_over_its_link(work, link, part, advice):
    text = told.reason(work, 1.0, link)
    assert bool(text) == bool(part)
    assert part in text and advice in text
    assert not text or "`gpushare run --on NODE`" in text
