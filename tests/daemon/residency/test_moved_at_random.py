"""Programs that compute all the time, on a node where people suspend and resume them at any moment, daemons are killed
and start again, helpers of the pool and neighbours are killed: no word is lost and no state stays for ever."""

import contextlib
import os
import random
import signal
import time
from collections import Counter

import pytest
from run.movedprogram import MovedProgram, helpers

from gpushare.errors import CannotMoveError, RefusedError

SECONDS = 30


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_anything_at_any_moment(daemon, client):
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    kept = client.create(memory=4 << 30, time=30, device=0, idle_memory="lend", keep=True)["id"]
    programs = [MovedProgram(daemon), MovedProgram(daemon), MovedProgram(daemon, kept)]
    for program in programs:
        program.do(f"from memory import touching; work = touching.Program({seed}, 2); work.start()")
    done: Counter[str] = Counter()

    def ask(act):
        try:
            act(rng.choice(programs).id)
            done[act.__name__] += 1
        except (CannotMoveError, RefusedError) as refusal:
            done[str(refusal).partition(": ")[2]] += 1

    def kill_daemon():
        daemon.kill()
        time.sleep(rng.uniform(0, 0.2))
        daemon.start()
        done["daemon"] += 1

    def kill_helpers():
        for helper in helpers(daemon):
            with contextlib.suppress(ProcessLookupError):
                os.kill(helper, signal.SIGKILL)
        done["helpers"] += 1

    def kill_neighbour():
        other = MovedProgram(daemon, kept)
        ask(client.suspend)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(other.pid, signal.SIGKILL)
        done["neighbour"] += 1

    acts = (lambda: ask(client.suspend), lambda: ask(client.resume), kill_daemon, kill_helpers, kill_neighbour)
    ends = time.monotonic() + SECONDS
    been_away: set[str] = set()
    while time.monotonic() < ends or len(been_away) < len(programs):
        been_away.update(one["id"] for one in client.grants() if one["residency"]["where"] == "suspended")
        rng.choices(acts, (30, 20, 1, 2, 1))[0]()
        time.sleep(rng.choice((0, 0.01, 0.05)))
    print(f"seed {seed}: {dict(done)}")
    for program in programs:
        program.comes_to("suspended", "resident")
        client.resume(program.id)
        program.comes_to("resident")
        assert program.get("work.end()") == [], f"seed {seed}"
    for program in programs[:2]:
        program.is_whole()
