"""Random histories of the processes of one grant under a real daemon, against a model of their memory.

After every step the slots of the usage page, the model and the simulator agree for each process, to the byte.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from memory.historyclient import Client
from memory.historymachine import LIMIT, PICKS, SIZES, Processes
from memory.memorymodel import (
    CONTEXT,
    MIB,
    OK,
    OUT_OF_MEMORY,
    VMM,
    Graph,
    Physical,
    array,
    linear,
    pitched,
    pool_growth,
    up,
)
from run import built
from run.keeper import Keeper
from run.running import Daemon
from run.waiting import until

SPACE = 16 * VMM


@pytest.fixture(scope="module")
def history_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    daemon = Daemon(tmp_path_factory.mktemp("histories") / "state", "1x4GiB")
    try:
        yield daemon.start()
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def history_program() -> Path:
    return built.program("history_client")


class Histories(Processes):
    # ---- contexts

    @rule(data=PICKS)
    def context(self, data: random.Random) -> None:
        client, _ = self.pick(data, context=False)
        if client.model.initialised:
            made = self.make_context(client, "ctx")
            if made:
                client.model.contexts[made] = "own"

    @rule(data=PICKS)
    def retain(self, data: random.Random) -> None:
        client, _ = self.pick(data, context=False)
        if client.model.initialised:
            made = self.make_context(client, "retain")
            if made:
                client.model.retain(made)

    @rule(data=PICKS)
    def leave_primary(self, data: random.Random) -> None:
        client, _ = self.pick(data, context=False)
        reset = data.random() < 0.2
        model, primary = client.model, client.model.primary()
        result, _ = client("reset" if reset else "unretain")
        if not model.initialised or (primary is None and not reset):
            assert result != OK
            return
        assert result == OK
        model.primary_refs = 0 if reset else model.primary_refs - 1
        if primary is not None and model.primary_refs == 0:
            model.end_context(primary)

    @rule(data=PICKS)
    def destroy(self, data: random.Random) -> None:
        client, _ = self.pick(data, context=False)
        own = [context for context, kind in client.model.contexts.items() if kind == "own"]
        if own:
            context = data.choice(own)
            assert client("destroy", context)[0] == OK
            client.model.end_context(context)

    # ---- memory

    @rule(data=PICKS, size=SIZES, way=st.sampled_from(["alloc", "managed", "thread"]))
    def alloc(self, data: random.Random, size: int, way: str) -> None:
        client, context = self.pick(data)
        need = up(size, 512) if way == "managed" else linear(size)
        made = self.allocate(client, context, need, way, size)
        if made:
            client.model.memory[made] = (context, need)

    @rule(data=PICKS, width=st.integers(4, 1 << 16), height=st.integers(1, 4096))
    def alloc_pitch(self, data: random.Random, width: int, height: int) -> None:
        client, context = self.pick(data)
        need = pitched(width, height)
        made = self.allocate(client, context, need, "pitch", width, height)
        if made:
            client.model.memory[made] = (context, need)

    @rule(data=PICKS, width=st.integers(1, 8192), height=st.integers(1, 4096))
    def make_array(self, data: random.Random, width: int, height: int) -> None:
        client, context = self.pick(data)
        need = array(width, height)
        made = self.allocate(client, context, need, "array", width, height)
        if made:
            client.model.arrays[made] = (context, need)

    @rule(data=PICKS)
    def destroy_array(self, data: random.Random) -> None:
        client, context = self.pick(data)
        if context and client.model.arrays:
            made = data.choice(list(client.model.arrays))
            assert client("unarray", context, made)[0] == OK
            del client.model.arrays[made]

    @rule(data=PICKS, way=st.sampled_from(["free", "freeasync"]))
    def free(self, data: random.Random, way: str) -> None:
        """Frees any number: memory, a block of a pool, a mapping, an address freed before, an address of another
        process."""
        client, context = self.pick(data)
        model = client.model
        alive = [*model.memory, *model.blocks, *model.graphs, *list(model.mappings)[:1]]
        at = self.number(data, client, "memory", alive)
        result, _ = client(way, context, at)
        if context and at in model.graphs and model.graphs[at].live:
            assert result == OK
            model.free_graph(at)
        elif context and (at in model.memory or at in model.blocks):
            assert result == OK
            if at in model.memory:
                del model.memory[at]
            else:
                model.drop_block(at)
            self.forget(client, "memory", at)
        else:
            assert result not in (OK, OUT_OF_MEMORY)

    # ---- pools

    @rule(data=PICKS, steps=st.integers(0, 3), part=st.integers(16 * MIB + 1, 32 * MIB))
    def alloc_async(self, data: random.Random, steps: int, part: int) -> None:
        client, context = self.pick(data)
        size = steps * 32 * MIB + part
        pool = data.choice([0, *client.model.pools])
        if context and len(client.model.pools) < 3 and data.random() < 0.3:
            result, pool = client("pool", context)
            assert result == OK
            client.model.pools[pool] = 1
        if context and self.used + pool_growth(size) > self.limit:
            client.model.graph_spare = 0  # all pools of the process are trimmed before a request is refused
        made = self.allocate(client, context, pool_growth(size), "frompool" if pool else "async", size, pool)
        if made:
            client.model.blocks[made] = (context, pool_growth(size), pool)

    @rule(data=PICKS)
    def end_pool(self, data: random.Random) -> None:
        """Its blocks live on."""
        client, context = self.pick(data)
        if context and client.model.pools:
            pool = data.choice(list(client.model.pools))
            assert client("unpool", context, pool)[0] == OK
            client.model.end_pool(pool)

    # ---- memory of graphs

    @rule(data=PICKS, size=st.integers(1, 64 * MIB))
    def launch(self, data: random.Random, size: int) -> None:
        """Launches a graph that allocates memory for others to free: a new graph, or one that ran before."""
        client, context = self.pick(data)
        model = client.model
        if not context:
            return
        at = data.choice([0] * (len(model.launchable()) < 4) + model.launchable())
        if at == 0:
            result, at = client("graph", context, size)
            assert result == OK
            model.graphs[at] = Graph(up(size, VMM))
        graph = model.graphs[at]
        result, _ = client("launch", context, at)
        if graph.size > model.graph_spare and self.used + graph.size > self.limit:
            model.graph_spare = 0  # a launch that does not fit releases it first
        fits = graph.size <= model.graph_spare or self.used + graph.size <= self.limit
        if graph.live:
            assert result != OK
        else:
            assert result == (OK if fits else OUT_OF_MEMORY)
        if result == OK:
            graph.live = True
            model.graph_spare = max(0, model.graph_spare - graph.size)

    @rule(data=PICKS)
    def end_graph(self, data: random.Random) -> None:
        """Its memory stays in the device's graph pool, and allocated if a launch left it so."""
        client, context = self.pick(data)
        if context and client.model.launchable():
            at = data.choice(client.model.launchable())
            assert client("ungraph", context, at)[0] == OK
            client.model.end_graph(at)
            self.forget(client, "memory", at)

    @rule(data=PICKS)
    def trim_graphs(self, data: random.Random) -> None:
        client, context = self.pick(data)
        if context:
            assert client("trim", context)[0] == OK
            client.model.graph_spare = 0

    # ---- physical memory

    @rule(data=PICKS, pieces=st.one_of(st.integers(1, 8), st.sampled_from([LIMIT // VMM, 1 << 20])))
    def create(self, data: random.Random, pieces: int) -> None:
        client, context = self.pick(data)
        if not context:
            return
        made = self.allocate(client, context, pieces * VMM, "create", pieces * VMM)
        if made:
            client.model.add_handle(made, Physical(pieces * VMM))
            if not client.model.space:
                result, client.model.space = client("space", context, SPACE)
                assert result == OK

    @rule(data=PICKS)
    def release(self, data: random.Random) -> None:
        client, context = self.pick(data)
        handle = self.number(data, client, "handle", list(client.model.handles))
        result, _ = client("drop", context, handle)
        if handle in client.model.handles:
            assert result == OK
            client.model.drop_handle(handle)
            if handle not in client.model.handles:
                self.forget(client, "handle", handle)
        else:
            assert result not in (OK, OUT_OF_MEMORY)

    @rule(data=PICKS, at=st.integers(0, SPACE // VMM - 1))
    def map(self, data: random.Random, at: int) -> None:
        client, context = self.pick(data)
        model = client.model
        if not context or not model.space:
            return
        address, handle = model.space + at * VMM, self.number(data, client, "handle", list(model.handles))
        result, _ = client("map", context, address, handle)
        if handle in model.handles and address not in model.mappings:
            assert result == OK
            model.mappings[address] = model.handles[handle][0]
        else:
            assert result not in (OK, OUT_OF_MEMORY)

    @rule(data=PICKS, at=st.integers(0, SPACE // VMM - 1), hold=st.booleans())
    def at_mapping(self, data: random.Random, at: int, hold: bool) -> None:
        """Unmaps, or gets one more handle of the mapped memory."""
        client, context = self.pick(data)
        model = client.model
        if not context or not model.space:
            return
        address = data.choice([*model.mappings, *model.mappings, model.space + at * VMM])
        result, made = client("hold" if hold else "unmap", context, address)
        if address not in model.mappings:
            assert result not in (OK, OUT_OF_MEMORY)
            return
        assert result == OK
        if hold:
            model.add_handle(made, model.mappings[address])
        else:
            del model.mappings[address]

    @rule(data=PICKS)
    def available(self, data: random.Random) -> None:
        client, context = self.pick(data)
        if context:
            result, total = client("total", context)
            assert result == OK
            assert total in ({client.model.total} if client.model.total else self.limits)
            client.model.total = total
            result, free = client("available", context)
            # a reported total never grows
            assert (result, free) == (OK, max(0, min(self.limit, client.model.total) - self.used))


def test_exec_beside_a_living_child(history_node: Daemon, history_program: Path) -> None:
    """The child has a copy of every descriptor, and may outlive the image that it was forked from."""
    keeper = Keeper(history_node, LIMIT)
    process = keeper.start(history_program)
    client, children = Client(process.pid, process), []
    try:
        assert client("init")[0] == OK
        result, context = client("retain")
        assert result == client("alloc", context, 100 * MIB)[0] == OK
        children.append(Client(client("fork", 0, 0)[1], None))
        assert keeper.slots() == {client.pid: CONTEXT + 100 * MIB}
        assert client("exec")[0] == OK
        until(lambda: not any(keeper.slots().values()), "the old image's slot is free", 5)
        assert history_node.books()["bytes"] == 0
    finally:
        for one in (client, *children):
            one.kill()
        keeper.end()


def play(node: Daemon, program: Path, examples: int, steps: int, *, derandomize: bool) -> None:
    machine = type("Played", (Histories,), {"node": node, "program": program})
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        deadline=None,
        phases=[Phase.generate],  # failures are timeouts, so shrinking a failure would take minutes
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=options)


@pytest.mark.timeout(300)
def test_histories(history_node: Daemon, history_program: Path) -> None:
    play(history_node, history_program, 8, 60, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_many_histories(history_node: Daemon, history_program: Path) -> None:
    play(history_node, history_program, 14, 100, derandomize=False)
