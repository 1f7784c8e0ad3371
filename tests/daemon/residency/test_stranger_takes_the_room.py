"""Somebody without a grant takes the device's memory while a grant's is away: the grant waits, says why, loses nothing,
and comes back when the stranger ends."""

import contextlib
import os
import signal

import pytest
from run.movedprogram import IN, OUT, MovedProgram, pool_is_empty
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare.paths import SIM_LIB_DIR

MIB = 1 << 20


@pytest.fixture
def stranger(daemon):
    """stranger(): a program that no grant knows takes all that the device has left."""
    with contextlib.ExitStack() as stack:

        def take():
            environment = {"LD_LIBRARY_PATH": str(SIM_LIB_DIR), "GPUSHARE_SIM_DIR": daemon.sim_dir}
            program = Tenant([str(SPIN)], {**os.environ, **environment})
            stack.callback(program.kill)
            for piece in (1024, 64, 1):
                while program.tell(f"alloc {piece}MiB")["ok"]:
                    pass
            return program

        yield take


def says_so(daemon, program):
    until(
        lambda: "somebody without a grant uses it" in program.shown["residency"]["waits"], "it says for whom it waits"
    )
    assert program.where == "resuming"
    assert "somebody without a grant" in program.shown["notice"]
    assert "somebody without a grant" in daemon.cli_here("why", program.id).stdout


@pytest.mark.parametrize("by", ["a call", pytest.param("a person", marks=pytest.mark.slow)])
def test_it_waits_until_the_stranger_ends(daemon, client, stranger, by):
    program = MovedProgram(daemon).suspended()
    taker = stranger()
    before = program.held
    if by == "a person":
        client.resume(program.id)
    program.do("import threading; get_all = lambda: (d.cuCtxSetCurrent(ctx), get(a, len(a_bytes)))[1]")
    program.do("got = []; thread = threading.Thread(target=lambda: got.append(get_all() == a_bytes)); thread.start()")
    says_so(daemon, program)
    assert program.held == before
    assert program.get("got") == []
    taker.kill()
    program.do("thread.join()")
    assert program.get("got") == [True]
    program.is_whole()


@pytest.mark.slow
def test_who_came_back_in_part_waits_for_the_rest(daemon, client, stranger):
    program = MovedProgram(daemon).suspended()
    before = program.held
    step = IN[1]  # the second allocation's memory is made, and is not there yet
    with program.at(step):
        taker = stranger()
        program.goes_on(step)
    says_so(daemon, program)
    assert before < program.held
    taker.kill()
    program.is_whole()


@pytest.mark.slow
def test_it_may_end_while_it_waits(daemon, client, stranger):
    program = MovedProgram(daemon).suspended()
    taker = stranger()
    client.resume(program.id)
    says_so(daemon, program)
    os.kill(program.pid, signal.SIGKILL)
    until(lambda: program.shown["phase"] == "released", "the grant ends")
    pool_is_empty(daemon)
    assert daemon.books()["bytes"] == sum(
        row["bytes"] for row in daemon.books()["processes"] if row["pid"] == taker.pid
    )


def test_who_is_called_back_has_its_room_taken(daemon, client, stranger):
    """A part has left when the suspend is called off, and a stranger has the room of that."""
    program = MovedProgram(daemon)
    step = OUT[6]  # the first allocation is unmapped
    with program.at(step):
        taker = stranger()
        client.resume(program.id)
        program.goes_on(step)
    says_so(daemon, program)
    taker.kill()
    program.is_whole()
