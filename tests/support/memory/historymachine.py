"""The processes of one grant as a state machine: they start, fork, exec and die.

Contains the invariants of their memory. Derived classes add the memory operations.
"""

import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from memory.historyclient import Client
from memory.memorymodel import CONTEXT, MIB, OK, OUT_OF_MEMORY, Process, linear
from run.keeper import Keeper
from run.running import Daemon
from run.waiting import until

from gpushare.errors import GpushareError

LIMIT = 1 << 30
MOST_PROCESSES = 4

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 64 * MIB),
    st.sampled_from(
        [1, 511, 512, 513, MIB, MIB + 1, 2 * MIB, LIMIT // 2, LIMIT - CONTEXT, LIMIT, LIMIT + 1, 1 << 40, (1 << 64) - 1]
    ),
)

# A single draw seeds every choice of a step, so that the number of draws per step does not depend on addresses and
# timing.
PICKS = st.integers(0, (1 << 32) - 1).map(random.Random)


class Processes(RuleBasedStateMachine):
    node: Daemon
    program: Path

    def __init__(self) -> None:
        super().__init__()
        self.keeper = Keeper(self.node, LIMIT)
        self.clients: list[Client] = []
        self.limit = LIMIT
        self.limits = {LIMIT}  # all limits so far

    # ---- help

    @property
    def used(self) -> int:
        return sum(client.model.held for client in self.clients)

    def tellable(self) -> list[Client]:
        return [client for client in self.clients if client.process is not None]

    def pick(self, data: random.Random, *, context: bool = True) -> tuple[Client, int]:
        """A process that accepts commands, and one of its contexts; processes with contexts are preferred."""
        clients = self.tellable()
        ready = [client for client in clients if client.model.contexts]
        client = data.choice(ready if context and ready and data.random() < 0.9 else clients)
        alive = list(client.model.contexts)
        if not context or not alive:
            return client, 0
        return client, data.choice(alive)

    def number(self, data: random.Random, client: Client, kind: str, alive: list[int]) -> int:
        """A number that is valid, was valid once, belongs to another process, or never existed."""
        others = [at for other in self.clients if other is not client for at in other.model.memory]
        return data.choice([*alive, *alive, *alive, *client.stale.get(kind, []), *others[:2], 0x1000])

    def allocate(self, client: Client, context: int, need: int, command: str, *numbers: int) -> int | None:
        """Runs a command that allocates; returns the created number, None if it failed. Asserts that it fails in the
        driver if there is no context, and in the interposer if the size exceeds the limit."""
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

    def make_context(self, client: Client, command: str) -> int | None:
        need = 0 if command == "retain" and client.model.primary_refs else CONTEXT
        result, made = client(command)
        assert result == (OK if self.used + need <= self.limit else OUT_OF_MEMORY), command
        return made if result == OK else None

    # ---- processes

    @initialize()
    def first(self) -> None:
        self.start(ready=True)

    @precondition(lambda self: len(self.clients) < MOST_PROCESSES)
    @rule(ready=st.booleans())
    def start(self, ready: bool) -> None:
        process = self.keeper.start(self.program)
        client = Client(process.pid, process)
        self.clients.append(client)
        if ready:
            assert client("init")[0] == OK
            client.model.initialised = True
            if made := self.make_context(client, "retain"):
                client.model.retain(made)

    @precondition(lambda self: len(self.clients) < MOST_PROCESSES)
    @rule(data=PICKS, size=SIZES, acts=st.booleans())
    def fork(self, data: random.Random, size: int, acts: bool) -> None:
        """The child of a process that used CUDA cannot use CUDA; the child of any other process can."""
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
        """The new image starts with no memory and has not called CUDA yet."""
        client, _ = self.pick(data, context=False)
        if data.random() < 0.3:  # rarely: a longer history tests more
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
            self.limits.add(limit)

    # ---- invariants

    def books(self) -> dict[int, int]:
        return {row["pid"]: row["bytes"] for row in self.node.books()["processes"] if row["alive"]}

    @invariant()
    def everybody_agrees(self) -> None:
        expected = {client.pid: client.model.held for client in self.clients if client.model.held}

        def seen(books: Callable[[], dict[int, int]]) -> dict[int, int]:
            return {pid: held for pid, held in books().items() if held}

        # Once the device and the daemon know of the death, the memory of the process must be free without further
        # delay.
        until(
            lambda: seen(self.books).keys() <= expected.keys() >= seen(self.keeper.slots).keys(),
            "the dead are gone",
            10,
        )
        found = {"slots": seen(self.keeper.slots), "simulator": seen(self.books)}
        assert found == {"slots": expected, "simulator": expected}, (found, expected)

    @invariant()
    def the_limit_holds(self) -> None:
        assert self.used <= self.limit
        assert self.node.books()["peak_bytes"] <= LIMIT

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()  # Hypothesis replays failures, and reports only the replayed one
        try:
            for client in self.clients:
                client.kill()
            self.clients.clear()
            until(lambda: not self.books() and not any(self.keeper.slots().values()), "all is given back", 10)
            assert self.node.books()["bytes"] == 0
        finally:
            self.keeper.end()
