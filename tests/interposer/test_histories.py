"""Random histories of the processes of one grant under a real daemon, against a model of what each of them holds.

After every step the slots of the usage page, the model and the simulator's own books agree for each process, byte for
byte.
"""

import os
import random
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from historyclient import Client, build
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from memorymodel import CONTEXT, MIB, OK, OUT_OF_MEMORY, VMM, Physical, Process, array, linear, pitched, pool_growth
from running import Daemon, until

from gpushare.enforce import cgroup
from gpushare.errors import GpushareError

LIMIT = 1 << 30
MOST_PROCESSES = 4
SPACE = 16 * VMM
# gs_page.h
SLOTS, SLOT_BYTES = 1024, 64 + 16 * 64

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 64 * MIB),
    st.sampled_from([1, 511, 512, 513, 2 * MIB, LIMIT // 2, LIMIT - CONTEXT, LIMIT, LIMIT + 1, 1 << 40, (1 << 64) - 1]),
)


class Keeper:
    """Holds the grant: its first process, without CUDA."""

    def __init__(self, node: Daemon) -> None:
        self.node = node
        self.process = subprocess.Popen(
            node.run(str(LIMIT), "50%", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.environment: dict[str, str] = until(self.read_environment, 10, "the grant's first process")
        self.directory = Path(self.environment["GPUSHARE_GRANT_DIR"])
        self.grant = self.directory.parent.name
        self.cgroup = cgroup.of_process(self.process.pid)
        self.usage = (self.directory / "usage").open("rb", buffering=0)

    def read_environment(self) -> dict[str, str]:
        """Of the program that `gpushare run` became; empty until it is that."""
        pairs = Path(f"/proc/{self.process.pid}/environ").read_bytes().split(b"\0")
        found = dict(os.fsdecode(one).split("=", 1) for one in pairs if b"=" in one)
        return found if "GPUSHARE_GRANT_DIR" in found else {}

    def start(self, program: Path) -> subprocess.Popen[str]:
        """A process of the grant."""
        assert self.cgroup is not None
        join = ["sh", "-c", f'echo $$ > {self.cgroup.path}/cgroup.procs && exec "$0"', str(program)]
        pipe = subprocess.PIPE
        return subprocess.Popen(join, stdin=pipe, stdout=pipe, text=True, env=self.environment)

    def slots(self) -> dict[int, int]:
        """Bytes by pid; also what is announced, which must be nothing while nobody allocates."""
        page, found = os.pread(self.usage.fileno(), 64 + 64 * SLOT_BYTES, 0), {}
        for at in range(64, len(page), SLOT_BYTES):
            state, _, pid = struct.unpack_from("<IIi", page, at)
            held, pending = struct.unpack_from("<QQ", page, at + 64)
            assert pending == 0
            if state:
                assert pid not in found, "a process has two slots"
                found[pid] = held
            else:
                assert held == 0, "a free slot holds memory"
        return found

    def end(self) -> None:
        self.usage.close()
        self.process.kill()
        self.process.communicate()
        until(lambda: not self.node.client.grants(), 10, "the grant ends")


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
def history_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("history") / "client")


# Choices among what there is at the moment, made from one number: how much is drawn for a step does not depend on the
# addresses and the moments of this run.
PICKS = st.integers(0, (1 << 32) - 1).map(random.Random)


class Histories(RuleBasedStateMachine):
    node: Daemon
    program: Path

    def __init__(self) -> None:
        super().__init__()
        self.keeper = Keeper(self.node)
        self.clients: list[Client] = []
        self.limit = LIMIT

    # ---- help

    @property
    def used(self) -> int:
        return sum(client.model.held for client in self.clients)

    def tellable(self) -> list[Client]:
        return [client for client in self.clients if client.process is not None]

    def pick(self, data: random.Random, *, context: bool = True) -> tuple[Client, int]:
        """A process that obeys, and one of its contexts."""
        client = data.choice(self.tellable())
        alive = list(client.model.contexts)
        if not context or not alive:
            return client, 0
        return client, data.choice(alive)

    def number(self, data: random.Random, client: Client, kind: str, alive: list[int]) -> int:
        """One that is valid, was valid once, is another process's, or never was."""
        others = [at for other in self.clients if other is not client for at in other.model.memory]
        return data.choice([*alive, *alive, *alive, *client.stale.get(kind, []), *others[:2], 0x1000])

    def allocate(self, client: Client, context: int, need: int, command: str, *numbers: int) -> int | None:
        """The number that was made. Fails in the driver without a context, in us where it does not fit."""
        result, made = client(command, context, *numbers)
        if context == 0:
            assert result not in (OK, OUT_OF_MEMORY)
        else:
            assert result == (OK if self.used + need <= self.limit else OUT_OF_MEMORY), (
                command,
                need,
                self.limit - self.used,
            )
        return made if result == OK else None

    def forget(self, client: Client, kind: str, number: int) -> None:
        client.stale.setdefault(kind, []).append(number)

    # ---- processes

    @initialize()
    def first(self) -> None:
        self.start(ready=True)

    @precondition(lambda self: len(self.clients) < MOST_PROCESSES)
    @rule(ready=st.booleans())
    def start(self, ready: bool) -> None:
        process = self.keeper.start(self.program)
        client = Client(process.pid, process)
        client.limit = lambda: self.limit
        self.clients.append(client)
        if ready:
            assert client("init")[0] == OK
            client.model.initialised = True
            if made := self.make_context(client, "retain"):
                client.model.retain(made)

    @precondition(lambda self: len(self.clients) < MOST_PROCESSES)
    @rule(data=PICKS, size=SIZES, acts=st.booleans())
    def fork(self, data: random.Random, size: int, acts: bool) -> None:
        """A child of a process that used CUDA can use none itself; one of a process that did not is like any other."""
        parent, _ = self.pick(data, context=False)
        result, pid = parent("fork", 0, size if acts else 0)
        child = Client(pid, None)
        self.clients.append(child)
        if not acts:
            assert result == OK
        elif parent.model.initialised:
            assert result not in (OK, OUT_OF_MEMORY)
        else:
            self.forked_used_cuda(child, result, size)

    def forked_used_cuda(self, child: Client, result: int, size: int) -> None:
        room = self.limit - self.used
        assert result == (OK if CONTEXT + linear(size) <= room else OUT_OF_MEMORY)
        if room >= CONTEXT:
            child.model.retain(1)
        if result == OK:
            child.model.memory[1] = (1, linear(size))

    @rule(data=PICKS)
    def exec(self, data: random.Random) -> None:
        """The new image starts with nothing, and has not called CUDA yet."""
        client, _ = self.pick(data, context=False)
        assert client("exec")[0] == OK
        client.model, client.stale = Process(), {}

    @rule(data=PICKS)
    def initialise(self, data: random.Random) -> None:
        client, _ = self.pick(data, context=False)
        assert client("init")[0] == OK
        client.model.initialised = True

    @precondition(lambda self: len(self.tellable()) > 1)
    @rule(data=PICKS)
    def kill(self, data: random.Random) -> None:
        client = data.choice(self.clients)
        if self.tellable() != [client]:
            client.kill()
            self.clients.remove(client)

    # ---- the limit

    @rule(limit=st.sampled_from([300 * MIB, LIMIT // 2, LIMIT]))
    def resize(self, limit: int) -> None:
        try:
            self.node.client.resize(self.keeper.grant, memory=str(limit))
        except GpushareError as error:
            assert limit < self.used, error
        else:
            assert limit >= self.used
            self.limit = limit

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

    def make_context(self, client: Client, command: str) -> int | None:
        need = 0 if command == "retain" and client.model.primary_refs else CONTEXT
        result, made = client(command)
        assert result == (OK if self.used + need <= self.limit else OUT_OF_MEMORY), command
        return made if result == OK else None

    @rule(data=PICKS, reset=st.booleans())
    def leave_primary(self, data: random.Random, reset: bool) -> None:
        client, _ = self.pick(data, context=False)
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
        made = self.allocate(client, context, linear(size), way, size)
        if made:
            client.model.memory[made] = (context, linear(size))

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
        """Any number: memory, a block of a pool, a mapping, freed before, somebody else's."""
        client, context = self.pick(data)
        model = client.model
        at = self.number(data, client, "memory", [*model.memory, *model.blocks, *list(model.mappings)[:1]])
        result, _ = client(way, context, at)
        if context and (at in model.memory or at in model.blocks):
            assert result == OK
            (model.memory if at in model.memory else model.blocks).pop(at)
            self.forget(client, "memory", at)
        else:
            assert result not in (OK, OUT_OF_MEMORY)

    # ---- pools

    @rule(data=PICKS)
    def make_pool(self, data: random.Random) -> None:
        client, context = self.pick(data)
        if context and len(client.model.pools) < 3:
            result, made = client("pool", context)
            assert result == OK
            client.model.pools[made] = 1

    @rule(data=PICKS, steps=st.integers(0, 3), part=st.integers(16 * MIB + 1, 32 * MIB))
    def alloc_async(self, data: random.Random, steps: int, part: int) -> None:
        client, context = self.pick(data)
        size = steps * 32 * MIB + part
        pool = data.choice([0, *client.model.pools])
        made = self.allocate(client, context, pool_growth(size), "frompool" if pool else "async", size, pool)
        if made:
            client.model.blocks[made] = (context, pool_growth(size))

    @rule(data=PICKS)
    def end_pool(self, data: random.Random) -> None:
        """Its blocks live on."""
        client, context = self.pick(data)
        if context and client.model.pools:
            pool = data.choice(list(client.model.pools))
            assert client("unpool", context, pool)[0] == OK
            del client.model.pools[pool]

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
        """Unmaps, or gets one more handle of what is mapped."""
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

    # ---- what always holds

    def books(self) -> dict[int, int]:
        return {row["pid"]: row["bytes"] for row in self.node.books()["processes"] if row["alive"]}

    @invariant()
    def everybody_agrees(self) -> None:
        expected = {client.pid: client.model.held for client in self.clients if client.model.held}

        def seen(books: Callable[[], dict[int, int]]) -> dict[int, int]:
            return {pid: held for pid, held in books().items() if held}

        # A dead process's bytes are back when the device and the daemon heard of its end; nothing else may take time.
        until(
            lambda: seen(self.books).keys() <= expected.keys() >= seen(self.keeper.slots).keys(),
            10,
            "the dead are gone",
        )
        found = {"slots": seen(self.keeper.slots), "simulator": seen(self.books)}
        assert found == {"slots": expected, "simulator": expected}

    @invariant()
    def the_limit_holds(self) -> None:
        assert self.used <= self.limit
        assert self.node.books()["peak_bytes"] <= LIMIT

    @rule(data=PICKS)
    def available(self, data: random.Random) -> None:
        client, context = self.pick(data)
        if context:
            result, free = client("available", context)
            # a total that a process was told once never grows
            assert (result, free) == (OK, max(0, min(self.limit, client.model.total) - self.used))

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()  # Hypothesis plays a failure again, and tells of that one only
        try:
            for client in self.clients:
                client.kill()
            self.clients.clear()
            until(lambda: not self.books() and not any(self.keeper.slots().values()), 10, "all is given back")
            assert self.node.books()["bytes"] == 0
        finally:
            self.keeper.end()


def test_exec_beside_a_living_child(history_node: Daemon, history_program: Path) -> None:
    """The child has a copy of every descriptor, and may outlive the image that it was forked from."""
    keeper = Keeper(history_node)
    process = keeper.start(history_program)
    client, children = Client(process.pid, process), []
    try:
        assert client("init")[0] == OK
        result, context = client("retain")
        assert result == client("alloc", context, 100 * MIB)[0] == OK
        children.append(Client(client("fork", 0, 0)[1], None))
        assert keeper.slots() == {client.pid: CONTEXT + 100 * MIB}
        assert client("exec")[0] == OK
        until(lambda: not any(keeper.slots().values()), 5, "the old image's slot is free")
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
        phases=[Phase.generate],  # a history that fails does so by waiting: shrinking it would take minutes
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=options)


@pytest.mark.timeout(300)
def test_histories(history_node: Daemon, history_program: Path) -> None:
    play(history_node, history_program, 40, 60, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_many_histories(history_node: Daemon, history_program: Path) -> None:
    play(history_node, history_program, 250, 100, derandomize=False)
