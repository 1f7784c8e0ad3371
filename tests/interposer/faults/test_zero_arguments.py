"""Every row of hooks.tsv called with zeros only: in a valid process the result is the driver's own, in a process whose
join was refused it is that there is no GPU."""

from collections.abc import Callable, Iterator

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Spawner
from run.simworker import Worker
from values import hooktable

NOT_READY = 802
ROWS = [(row.symbol, row.kind) for row in hooktable.ROWS]
# each call with twelve words of zero, the maximum that any of the functions takes
CALL = """
    import ctypes
    def call(name, *head):
        function = getattr(lib, name)
        return function(*[ctypes.c_void_p(word) for word in [*head, *[0] * (12 - len(head))]])
"""
Start = Callable[[Grant | None], Worker]


@pytest.fixture
def start(sim: Simulator) -> Iterator[Start]:
    made: list[Worker] = []

    def run(grant: Grant | None) -> Worker:
        made.append(Worker(Spawner(sim, grant)))
        made[-1].do(CALL)
        return made[-1]

    yield run
    for worker in made:
        worker.process.kill()
        worker.process.communicate()


@pytest.mark.parametrize("ready", ["before cuInit", "without a context", "with a context"])
def test_zeros(grant: Grant, start: Start, ready: str) -> None:
    alone, ours = start(None), start(grant)
    for worker in (alone, ours):
        if ready != "before cuInit":
            worker.do("ok(d.cuInit(0))")
        if ready == "with a context":
            worker.do("ctx = context()")
    names = [name for name, _ in ROWS if ready != "before cuInit" or name != "cuInit"]
    answers = {name: (alone.get(f"call({name!r})"), ours.get(f"call({name!r})")) for name in names}
    assert {name: pair for name, pair in answers.items() if pair[0] != pair[1]} == {}
    assert len(answers) > 280


def test_a_refused_process_reaches_nothing(grant: Grant, start: Start) -> None:
    grant.limits.magic = 0  # an invalid page
    worker = start(grant)
    hooked = {name for name, kind in ROWS if kind not in ("pass", "lookup")}
    answers = {name: worker.get(f"call({name!r})") for name in hooked}
    assert {name: answer for name, answer in answers.items() if answer != NOT_READY} == {}
    assert worker.get("call('cuInit')") == NOT_READY
    assert grant.connections == 0
