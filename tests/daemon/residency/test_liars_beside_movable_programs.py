"""Tenants that answer with lies when their memory is to move, or flood the daemon with it: the memory of their
neighbours moves and is whole, they compute, and the daemon answers."""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
from hostile import probe
from run.built import SUPPORT
from run.movedprogram import MovedProgram, pool_is_empty
from run.running import start
from run.waiting import until

from gpushare.errors import CannotMoveError, RefusedError

ROUNDS = 5
KINDS = ["flaps", "looks", "segments", "silent", "agrees", "refuses", "yields"]


class Liar:
    def __init__(self, daemon, kind):
        command = [sys.executable, str(SUPPORT / "hostile" / "liar.py"), kind]
        environment = {**daemon.env, "PYTHONPATH": str(SUPPORT)}
        words = daemon.run("2GiB", "10%", *command, idle_memory="lend", gpu="0")
        self.process = start(words, environment, stderr=False)
        daemon.children.append(self.process)
        words = self.process.stdout.readline().split()
        assert words[:1] == ["joined"], words
        self.id = words[1]


@contextlib.contextmanager
def answering(daemon):
    """The daemon answers all the time, and within seconds: this machine may be busy with more than its processors."""
    command = [sys.executable, probe.__file__, str(daemon.layout.socket), str(daemon.process.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prober:
        yield
        answers = json.loads(prober.communicate("\n")[0])
    print(answers)
    assert answers["failed"] == 0
    assert answers["most"] < 5


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])])
def test_a_liar_loses_only_its_own(daemon, client, kind):
    program, liar = MovedProgram(daemon), Liar(daemon, kind)
    neighbour = daemon.spin("1GiB", "40%", gpu="0")
    with contextlib.closing(neighbour):
        neighbour.tell("run 1000000")
        with answering(daemon):
            for _ in range(ROUNDS):
                with contextlib.suppress(CannotMoveError, RefusedError):
                    client.suspend(liar.id)
                before = daemon.busy(neighbour.pid)[0]
                program.suspended()
                with contextlib.suppress(CannotMoveError, RefusedError):
                    client.resume(liar.id)
                until(lambda before=before: daemon.busy(neighbour.pid)[0] > before, "its neighbour computes")
                client.resume(program.id)
                program.comes_to("resident")
            assert client.grant(liar.id)["phase"] in ("active", "suspended")
        client.release(liar.id)
        until(lambda: client.grant(liar.id)["phase"] == "released", "it can be ended")
        program.is_whole()
        pool_is_empty(daemon)


@pytest.mark.drawn(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_liar_gets_no_room_of_others(daemon, client, kind):
    """Whatever it says to have left, its guarantee and its neighbours' are all that is given away."""
    liar = Liar(daemon, kind)
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        with contextlib.suppress(CannotMoveError, RefusedError):
            client.suspend(liar.id)
        [device] = client.grant(liar.id)["devices"]
        guaranteed = client.devices()[0]["guaranteed"]["memory"]
        assert 0 <= guaranteed <= 2 << 30
        assert 0 <= device["memory_hosted_bytes"] <= 2 << 30
        pool = client.node()["host_pool"]
        assert pool["reserved"] <= 1 << 30
        assert pool["used"] <= 3 << 30, "with what it gave back, and which is not empty yet"
        with contextlib.suppress(CannotMoveError, RefusedError):
            client.resume(liar.id)
    os.kill(liar.process.pid, 9)
    until(lambda: client.grant(liar.id)["phase"] == "released", "its grant ends")
    pool_is_empty(daemon)
