"""The audit's decisions, and sums of the driver's samples."""

import subprocess
from types import SimpleNamespace

import pytest

from gpushare.node.nvml import Worked
from gpushare.policy.audit import audit
from gpushare.policy.audit.audit import Act, Program, Rules, Stranger
from gpushare.reader import lookups

ONE = Program(10, 5, ("a", "b"))


def stranger(program: Program = ONE, grant: str = "g", device: int = 0) -> Stranger:
    return Stranger(program, device, grant, 1 << 20, 0)


def test_only_who_is_seen_twice_is_found():
    assert audit.confirmed([stranger()], [stranger()], []) == [stranger()]
    assert audit.confirmed([stranger()], [], []) == []
    assert audit.confirmed([], [stranger()], []) == []


@pytest.mark.parametrize("other", [Program(10, 6, ("a", "b")), Program(10, 5, ("c", "b")), Program(11, 5, ("a", "b"))])
def test_another_program_the_second_time_is_not_the_same(other):
    assert audit.confirmed([stranger()], [stranger(other)], []) == []


def test_who_has_joined_or_moved_meanwhile_is_not_found():
    assert audit.confirmed([stranger()], [stranger()], [10]) == []
    assert audit.confirmed([stranger()], [stranger(grant="")], []) == []


def test_one_on_two_devices_is_found_once():
    both = [stranger(device=0), stranger(device=1)]
    assert audit.confirmed(both, both, []) == [stranger(device=0)]


@pytest.mark.parametrize(
    ("grant", "rules", "age", "due"),
    [
        ("g", Rules(), 1 << 60, Act.FREEZE),
        ("", Rules(), 1 << 60, Act.TELL),
        ("g", Rules(evader=Act.KILL, grace_ns=10), 9, Act.FREEZE),
        ("g", Rules(evader=Act.KILL, grace_ns=10), 10, Act.KILL),
        ("", Rules(outside=Act.KILL, grace_ns=0), 0, Act.KILL),
        ("g", Rules(evader=Act.TELL), 1 << 60, Act.TELL),
    ],
)
def test_what_is_done(grant, rules, age, due):
    assert audit.act(stranger(grant=grant), rules, age) is due


@pytest.mark.parametrize(
    ("facts", "over"),
    [
        ({}, ""),
        ({"grants": []}, "released"),
        ({"joined": {10: 5}}, "joined"),
        ({"joined": {10: 4}}, ""),
        ({"alive": False}, "ended"),
        ({"listed": False}, "left"),
    ],
)
def test_how_it_ends(facts, over):
    usual = {"grants": ["g"], "joined": {}, "alive": True, "listed": True}
    assert audit.outcome(ONE, "g", **{**usual, **facts}) == over


def held(size: int, processes: int = 1) -> audit.Held:
    return audit.Held("g", 0, size, 1 << 30, processes, ONE)


def test_more_than_the_limit_counts_when_it_lasts():
    most = (1 << 30) + audit.SLACK_BYTES
    excesses = audit.Excesses()
    assert excesses.follow([held(most + 1)], 0) == []
    assert excesses.follow([held(most + 1)], audit.EXCESS_NS - 1) == []
    assert excesses.follow([held(most)], audit.EXCESS_NS) == []  # starts over
    assert excesses.follow([held(most + 1)], 2 * audit.EXCESS_NS) == []
    assert excesses.follow([held(most + 1)], 3 * audit.EXCESS_NS) == [held(most + 1)]
    assert not audit.exceeds(held(most + 1, processes=2))


def sample(pid: int, at_us: int, percent: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, timeStamp=at_us, smUtil=percent)


def test_samples_of_utilisation_add_up_to_time():
    worked = Worked()
    worked.add([sample(1, 1_000_000, 90)])
    assert worked.busy_ns == {1: 0}  # the first sample's interval is not known
    worked.add([sample(1, 1_000_000, 90), sample(1, 1_200_000, 50), sample(2, 1_200_000, 100)])
    assert worked.busy_ns == {1: 100_000_000, 2: 0}
    worked.add([sample(1, 9_200_000, 10)])  # use in the seconds between is not known
    assert worked.busy_ns[1] == 200_000_000
    worked.keep({2})
    assert (worked.busy_ns, worked.newest_us) == ({2: 0}, 9_200_000)


def test_a_command_line_obeys_nothing(monkeypatch):
    assert lookups.printable("a\x1b[31m é\n") == "a\\x1b[31m é\\n"
    assert lookups.command(1 << 30) == ""
    pipe = subprocess.PIPE
    with subprocess.Popen([""], executable="/bin/cat", stdin=pipe, stdout=pipe, bufsize=0) as nameless:
        nameless.stdin.write(b"up\n")
        assert nameless.stdout.readline() == b"up\n"
        assert lookups.command(nameless.pid) == "cat"


def test_memory_of_nobody_counts_when_it_lasts():
    unowned, much = audit.Unowned(10), audit.UNOWNED_BYTES + 1
    assert unowned.follow({0: much, 1: much - 1}, 0) == {}
    assert unowned.follow({0: much, 1: much}, 10) == {0: much}
    assert unowned.follow({0: much - 1, 1: much}, 20) == {1: much}
    assert unowned.follow({0: much, 1: much}, 30) == {1: much}  # device 0 starts over
