"""Random bytes on the tenant socket: it answers or closes, keeps no state, and serves the next process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import joinfuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages.joinmessages import answered, request, segment_request
from run import doors
from run.waiting import until

from gpushare._native import ffi, lib
from gpushare.enforce import cgroup

MAGIC, VERSION, NO_SLOT, SLOTS = lib.GS_JOIN_MAGIC, lib.GS_WIRE_VERSION, lib.GS_NO_SLOT, lib.GS_MAX_SLOTS
HONEST = request()
CONNECTIONS = 2048  # the daemon's limit for one grant
OTHERS = 20  # at most so many other descriptors of the daemon come and go meanwhile

WORDS = st.one_of(
    st.sampled_from([0, 1, 2, MAGIC, NO_SLOT, SLOTS - 1, SLOTS, 1 << 31, (1 << 32) - 1]), st.integers(0, (1 << 32) - 1)
)
REQUESTS = st.builds(
    request, slot=WORDS, generation=WORDS, magic=st.sampled_from([MAGIC, 0]), version=st.sampled_from([VERSION, 2])
)
SEGMENTS = st.builds(
    segment_request,
    st.one_of(st.sampled_from([0, 2 << 20, lib.GS_SEGMENT_MOST, (1 << 64) - 1]), st.integers(0, (1 << 64) - 1)),
    WORDS,
    WORDS,
    device=WORDS,
    version=st.sampled_from([VERSION, 2]),
)
MESSAGES = st.one_of(
    st.just(HONEST),
    REQUESTS,
    SEGMENTS,
    st.tuples(REQUESTS, st.binary(min_size=1, max_size=8)).map(b"".join),
    REQUESTS.map(lambda request: request[:-1]),
    st.binary(max_size=64),
    st.integers(1, 100_000).map(bytes),
)


class Member:
    """A process of the grant that sends given bytes."""

    def __init__(self, path: Path, pid: int) -> None:
        group = cgroup.of_process(pid)
        assert group is not None
        enter = f'echo $$ > {group.path}/cgroup.procs && exec "$0" "$@"'
        command = ["sh", "-c", enter, sys.executable, joinfuzz.__file__, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def __call__(self, **command: Any) -> Any:
        self.process.stdin.write(json.dumps(command) + "\n")
        return json.loads(self.process.stdout.readline())

    def exchange(self, messages: list[bytes], descriptors: int, waits: bool) -> tuple[bytes, int] | None:
        notified = [message.hex() for message in messages]
        answer = self(messages=notified, descriptors=descriptors, waits=waits)
        return (bytes.fromhex(answer[0]), answer[1]) if answer else None

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()


class House:
    """A daemon, a grant with one honest process, and a hostile grant."""

    def __init__(self, daemon: Any) -> None:
        self.daemon = daemon
        self.child, self.grant = daemon.join()
        self.path = daemon.layout.grants / self.grant / "self" / "grant.sock"
        self.before = self.descriptors()
        self.member = Member(self.path, self.child.pid)

    def descriptors(self) -> int:
        """Open descriptors of the daemon and of its door together."""
        daemon = self.daemon.process.pid
        return doors.descriptors(daemon) + len(os.listdir(f"/proc/{doors.pid(daemon)}/fd"))

    def honest(self) -> list[str]:
        """The answer to a child of the honest process when it joins."""
        self.child.stdin.write("fork\n")
        return self.child.stdout.readline().split()

    def nothing_is_left(self) -> None:
        self.member.end()
        until(lambda: self.descriptors() <= self.before, "the daemon has closed all that it had opened", 20)
        assert self.honest()[0] == "joined"
        until(lambda: self.daemon.client.grant(self.grant)["processes"] == [self.child.pid], "the others are gone", 10)


@pytest.fixture
def house(daemon: Any) -> Iterator[House]:
    if os.geteuid() != 0:
        pytest.skip("a process is put into a grant's cgroup by root")
    made = House(daemon)
    yield made
    made.member.end()


def check(messages: list[bytes], answer: tuple[bytes, int] | None, *, member: bool) -> None:
    if answer is None:
        assert not messages or not messages[0], "what was said is answered"
        return
    reply = answered(answer[0])
    text = ffi.string(reply.message)
    assert (reply.magic, reply.version) == (MAGIC, VERSION)
    assert reply.message[len(reply.message) - 1] == b"\0"
    if len(messages[0]) == 32 and messages[0][:8] == segment_request(0, 0, 0)[:8]:
        # By chance it names the process's own slot. There is nothing reserved, and so nothing to have.
        gives_back = member and not any(messages[0][16:24])
        assert reply.error in (lib.GS_JOIN_REFUSED, lib.GS_JOIN_FULL) or gives_back, text
        assert answer[1] == 0
        return
    understood = len(messages[0]) == len(HONEST) and messages[0][:8] == HONEST[:8]
    right = lib.GS_JOIN_OK if member else lib.GS_JOIN_REFUSED
    assert reply.error == (right if understood else lib.GS_JOIN_VERSION), text
    if reply.error == lib.GS_JOIN_OK:
        assert reply.slot < SLOTS and reply.generation > 0 and reply.host_pid > 0 and answer[1] == 1
    else:
        assert (reply.slot, reply.generation, reply.host_pid, answer[1]) == (NO_SLOT, 0, 0, 0)
        assert text


@pytest.mark.promise("socket-delays-own-grant")
@pytest.mark.parametrize("examples", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_any_message_is_answered_or_its_connection_closed(house: House, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        messages=st.lists(MESSAGES, max_size=4),
        descriptors=st.sampled_from([0, 0, 1, 7]),
        waits=st.booleans(),
        member=st.booleans(),
    )
    def play(messages: list[bytes], descriptors: int, waits: bool, member: bool) -> None:
        if member:
            answer = house.member.exchange(messages, descriptors, waits)
        else:
            answer = joinfuzz.exchange(str(house.path), messages, descriptors, waits)
        if waits:
            check(messages, answer, member=member)

    play()
    house.nothing_is_left()


@pytest.mark.promise("socket-delays-own-grant")
def test_a_flood_of_connections_shuts_out_only_its_own_grant(house: House) -> None:
    house.member(fill=CONNECTIONS + 100)
    until(lambda: house.descriptors() >= house.before + CONNECTIONS - OTHERS, "the daemon took what it takes", 20)
    child, other = house.daemon.join()
    assert house.daemon.client.grant(other)["processes"] == [child.pid]
    until(lambda: house.descriptors() <= house.before + CONNECTIONS + OTHERS, "and closed the rest", 20)
    child.stdin.write("end\n")
    assert child.wait(20) == 0
    house.member(end=True)
    house.nothing_is_left()


def test_a_flood_of_messages_delays_nobody_else(house: House) -> None:
    """The flood is on a connection that has joined, from which the daemon reads nothing more."""
    house.member.process.stdin.write(json.dumps({"talk": 50_000, "request": HONEST.hex()}) + "\n")
    child, other = house.daemon.join()
    assert house.daemon.client.grant(other)["processes"] == [child.pid]
    assert house.honest()[0] == "joined"
    assert json.loads(house.member.process.stdout.readline()) < 50_000, "the connection is closed in that direction"
    child.stdin.write("end\n")
    assert child.wait(20) == 0
    house.nothing_is_left()
