"""gpushare plan --remote: what a grant here did, and links to other nodes, become predictions."""

import json
from types import SimpleNamespace

import pytest

from gpushare.cli.grants import elsewhere
from gpushare.cli.main import main
from gpushare.errors import UnreachableError, UsageError
from gpushare.policy.remote.predict import Path

GRANT = {"id": "g-1", "sync_calls": 1200, "host_bytes_in": 200_000_000, "host_bytes_out": 100_000_000}
LINKS = {"near": Path(85, 9.6e9, 12e9), "far": Path(1100, 2e9, 1e9)}


@pytest.fixture
def plan(monkeypatch):
    """Runs the verb; the grant ran for so many seconds."""

    def run(*words, seconds=10.0):
        grant = GRANT | {"running_ns": int(seconds * 1e9)}
        monkeypatch.setattr(elsewhere, "client", lambda args: SimpleNamespace(grant=lambda name: grant))
        monkeypatch.setattr(elsewhere.checking, "check", check)
        return main(["plan", "--like", "g-1", *(part for word in words for part in ("--remote", word))])

    return run


def check(name):
    if name == "typo":
        raise UsageError("node 'typo': there is none")
    if name not in LINKS:
        raise UnreachableError("it does not answer")
    return SimpleNamespace(path=LINKS[name])


def test_one_node_is_one_line(plan, capsys):
    assert plan("near") == 0
    assert capsys.readouterr().out == "120 synchronising calls/s, 30 MB/s: +3.7 % on near (85 us, 9.6 Gbit/s)\n"


def test_several_nodes_are_compared_and_one_that_does_not_answer_is_told_last(plan, capsys):
    assert plan("gone", "far", "near", "far") == 0
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "120 synchronising calls/s, 30 MB/s",
        "+3.7 % on near",
        "+30 % on far",
        "not known on gone: it does not answer",
    ]


def test_nobody_answers(plan, capsys):
    assert plan("gone") == UnreachableError.exit_code
    assert capsys.readouterr().out.endswith(": not known on gone: it does not answer\n")


def test_as_json(plan, capsys, monkeypatch):
    monkeypatch.setattr(elsewhere, "_LINK", ("rtt_us",))
    assert plan("far", "gone") == 0
    capsys.readouterr()
    assert main(["plan", "--json", "--like", "g-1", "--remote", "far", "--remote", "gone"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["grant"] == "g-1" and found["sync_calls_per_second"] == 120
    far, gone = found["nodes"]
    assert (far["node"], far["rtt_us"]) == ("far", 1100) and far["slowdown"] == pytest.approx(0.2956)
    assert gone == {"node": "gone", "trouble": "it does not answer"}


@pytest.mark.parametrize(
    ("words", "seconds", "status"), [(("near",), 0, 3), (("near", "typo"), 10, 2), (("typo",), 10, 2)]
)
def test_what_cannot_be_predicted(plan, capsys, words, seconds, status):
    assert plan(*words, seconds=seconds) == status
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--remote", "near"),
        ("--like", "g-1"),
        ("--like", "g-1", "--remote", "near", "--memory", "1GiB"),
        ("--memory", "1GiB"),
        (),
    ],
)
def test_what_belongs_together(words, capsys):
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert "give" in said or "leave out" in said
