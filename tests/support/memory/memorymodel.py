"""A model, exact to the byte, of the memory held by the processes of one grant, from CUDA's and the charging rules. It
uses none of gpushare's code."""

from dataclasses import dataclass, field

MIB = 1 << 20
CONTEXT = 16 * MIB  # the simulator's cost of a context
OK, OUT_OF_MEMORY = 0, 2


def up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# All rounding rules.


def linear(size: int) -> int:
    return up(size, 512 if size <= MIB else 2 * MIB)


def pitched(width: int, height: int) -> int:
    return linear(up(width, 512) * height)


def array(width: int, height: int) -> int:
    """For arrays with elements of 16 bytes."""
    return up(width * height * 16, 512)


def pool_growth(size: int) -> int:
    """For blocks larger than half a step, so that no other block fits in the same step."""
    return up(size, 32 * MIB)


VMM = 2 * MIB  # granularity of physical memory and of mappings


@dataclass
class Physical:
    size: int
    holders: int = 0  # handles and mappings


@dataclass
class Graph:
    """An executable graph with one allocation node. live: allocated by a launch; ended: destroyed, maybe still live."""

    size: int
    live: bool = False
    ended: bool = False


@dataclass
class Ended:
    """A destroyed pool; its memory is freed with its last block."""

    blocks: set[int]
    size: int


@dataclass
class Process:
    """Contexts, memory and pools are keyed by the driver's values."""

    initialised: bool = False
    total: int = 0  # the total the process sees: the limit when it joined
    contexts: dict[int, str] = field(default_factory=dict)  # alive; "primary" or "own"
    primary_refs: int = 0
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)  # address -> (context, bytes)
    arrays: dict[int, tuple[int, int]] = field(default_factory=dict)
    pools: dict[int, int] = field(default_factory=dict)  # pool -> 1
    blocks: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # address -> (context, pool growth, pool)
    ended: list[Ended] = field(default_factory=list)
    graphs: dict[int, Graph] = field(default_factory=dict)  # address of the node's memory -> graph
    graph_spare: int = 0  # memory that the device's graph pool reserves and no graph uses
    handles: dict[int, tuple[Physical, int]] = field(default_factory=dict)  # handle -> (physical, releases left)
    mappings: dict[int, Physical] = field(default_factory=dict)  # address -> mapped physical memory
    space: int = 0

    @property
    def held(self) -> int:
        physical = {id(one): one for one, _ in self.handles.values()} | {id(one): one for one in self.mappings.values()}
        return (
            CONTEXT * len(self.contexts)
            + sum(size for _, size in self.memory.values())
            + sum(size for _, size in self.arrays.values())
            + sum(size for _, size, _ in self.blocks.values())
            + sum(pool.size for pool in self.ended)
            + sum(graph.size for graph in self.graphs.values() if graph.live)
            + self.graph_spare
            + sum(one.size for one in physical.values())
        )

    def free_graph(self, at: int) -> None:
        if self.graphs[at].live:
            self.graphs[at].live = False
            self.graph_spare += self.graphs[at].size
        if self.graphs[at].ended:
            del self.graphs[at]

    def end_graph(self, at: int) -> None:
        self.graphs[at].ended = True
        if not self.graphs[at].live:
            del self.graphs[at]

    def launchable(self) -> list[int]:
        return [at for at, graph in self.graphs.items() if not graph.ended]

    def drop_block(self, at: int) -> None:
        del self.blocks[at]
        for pool in self.ended:
            pool.blocks.discard(at)
        self.ended = [pool for pool in self.ended if pool.blocks]

    def end_pool(self, pool: int) -> None:
        del self.pools[pool]
        own = {at: one for at, one in self.blocks.items() if one[2] == pool}
        if own:
            self.ended.append(Ended(set(own), sum(size for _, size, _ in own.values())))
            self.blocks |= {at: (context, 0, 0) for at, (context, _, _) in own.items()}

    def end_context(self, context: int) -> None:
        self.graph_spare = 0
        del self.contexts[context]
        self.memory = {at: one for at, one in self.memory.items() if one[0] != context}
        self.arrays = {at: one for at, one in self.arrays.items() if one[0] != context}
        for at in [at for at, one in self.blocks.items() if one[0] == context]:
            self.drop_block(at)

    def retain(self, context: int) -> None:
        self.contexts[context] = "primary"
        self.primary_refs += 1

    def primary(self) -> int | None:
        return next((context for context, kind in self.contexts.items() if kind == "primary"), None)

    def add_handle(self, handle: int, physical: Physical) -> None:
        self.handles[handle] = (physical, self.handles.get(handle, (physical, 0))[1] + 1)

    def drop_handle(self, handle: int) -> None:
        physical, times = self.handles.pop(handle)
        if times > 1:
            self.handles[handle] = (physical, times - 1)
