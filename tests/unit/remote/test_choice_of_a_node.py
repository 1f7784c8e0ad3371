"""Which node `--remote any` takes."""

import pytest

from gpushare.remote.choice import Candidate, ordered, refusals
from gpushare.remote.overview import latest


@pytest.mark.parametrize(
    ("candidates", "names"),
    [
        ([], []),
        ([Candidate("a", "it is full")], []),
        # Fits, then the class of the link, then the most free time, then memory, then the shorter round trip.
        ([Candidate("a", "it is full", "good"), Candidate("b", checked="poor")], ["b"]),
        ([Candidate("a", checked="fair", free_milli=9), Candidate("b", checked="good", free_milli=1)], ["b", "a"]),
        ([Candidate("a", checked="good", free_milli=1), Candidate("b", checked="good", free_milli=2)], ["b", "a"]),
        (
            [Candidate("a", free_milli=1, free_bytes=1), Candidate("b", free_milli=1, free_bytes=2)],
            ["b", "a"],
        ),
        ([Candidate("a", checked="good", rtt_us=40), Candidate("b", checked="good", rtt_us=20)], ["b", "a"]),
        ([Candidate("b"), Candidate("a")], ["a", "b"]),
        # One that was never checked is worth a try before one that is known to be poor, not before a fair one.
        (
            [*(Candidate(name, checked=name) for name in ("refused", "poor", "fair")), Candidate("u")],
            ["fair", "u", "poor", "refused"],
        ),
    ],
)  # fmt: skip
def test_the_best_comes_first(candidates, names):
    assert [one.name for one in ordered(candidates)] == names
    assert [one.name for one in ordered(reversed(candidates))] == names


def test_refusals_name_each_node():
    assert refusals([Candidate("a", "it is full"), Candidate("b", "no answer")]) == "a: it is full; b: no answer"
    assert "nodes.toml" in refusals([])


def attachment(origin, created, checked="", rtt=0):
    return {"origin": origin, "created_ns": created, "link": {"kind": "tls", "checked": checked, "rtt_us": rtt}}


@pytest.mark.parametrize(
    ("attachments", "rtt"),
    [
        ([], None),
        ([attachment("other", 1, "good", 9)], None),
        ([attachment("me", 1, "good", 9), attachment("me", 2, "fair", 80)], 80),
        ([attachment("me", 1, "good", 9), attachment("me", 2)], 9),
        ([attachment("me", 2)], 0),
    ],
)
def test_the_last_link_of_this_machine(attachments, rtt):
    found = latest(attachments, "me")
    assert (found and found["rtt_us"]) == rtt
