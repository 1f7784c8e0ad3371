"""Whatever of a node is killed while machines attach and leave: nothing of them is left, and the next one attaches."""

import os
import random
import signal
import threading

import pytest
from remote.elsewhere import Elsewhere, echoes
from remote.processes import inside, relay, sandbox
from run.waiting import until

from gpushare.errors import GpushareError

GIB = 1 << 30
ROUNDS = 15


def use(node, mine):
    """Attaches and sends bytes for a moment, as far as that goes."""
    try:
        attached = node.client.attach(mine, carrier="echo")
        with Elsewhere(attached) as machine:
            for _ in range(20):
                echoes(machine.open())
    except (GpushareError, OSError):
        pass


def kill(node, victim, mine):
    if victim == "daemon":
        node.kill()
        node.start()
        return
    found = {"relay": [relay(node)], "sandbox": [sandbox(node)], "server": inside(mine)[:1]}[victim]
    for pid in filter(None, found):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.slow
def test_nothing_is_left_and_the_next_one_attaches(reachable):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    play, made, never = random.Random(seed), [], threading.Event()
    for _ in range(ROUNDS):
        made.append(reachable.client.create(memory=GIB, time=10, keep=play.random() < 0.3)["id"])
        thread = threading.Thread(target=use, args=(reachable, made[-1]))
        thread.start()
        never.wait(play.random() * 0.5)
        kill(reachable, play.choice(("daemon", "relay", "sandbox", "server")), made[-1])
        thread.join(60)
        assert not thread.is_alive()
    for one in reachable.client.grants():
        reachable.client.release(one["id"])
    until(lambda: not inside(*made), "their processes end")
    until(lambda: not any(not one["ending"] for one in reachable.client.remote()["attachments"]), "attachments end")
    reachable.nothing_left()
    until(lambda: reachable.client.remote()["relay"], "the relay serves")
    with Elsewhere(reachable.client.attach(reachable.client.create(memory=GIB, time=10)["id"], carrier="echo")) as last:
        assert echoes(last.open())
