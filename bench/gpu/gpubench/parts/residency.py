"""Memory that leaves the device and comes back, of programs that are suspended and resumed as people do it."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpubench.context import Context
from gpubench.stats import Spread, spread
from gpubench.worker import Json, Unit, Worker, WorkerError, rate, window

MIB, GIB = 1 << 20, 1 << 30
BYTES = 8 * GIB
BLOCK = 128 * MIB
PIECES = {"2 MiB": 2 * MIB, "20 MiB": 20 * MIB, "128 MiB": 128 * MIB, "1 GiB": GIB}
LENDS = ("--idle-memory", "lend")
PREPARED_PART, EXCHANGE_PART, STEP_PERCENT, WAKE_MS = 0.9, 1.15, 0.5, 50.0
_MOVE_SECONDS = 60.0
STEP = Unit(100, 20, copy=MIB)


def _sizes(context: Context) -> tuple[int, int]:
    """How many blocks, and of how many bytes: all that has to fit into a machine's memory several times."""
    return (8, 2 * MIB) if context.simulated else (BYTES // BLOCK, BLOCK)


class Tenant:
    """A program whose grant lends."""

    def __init__(self, context: Context, worker: Worker, size: int) -> None:
        self.context, self.worker, self.size = context, worker, size
        self.id = context.stage.grant_of(worker)["id"]

    def _comes_to(self, where: str) -> None:
        deadline = time.monotonic() + _MOVE_SECONDS
        while (now := self.context.stage.client.grant(self.id)["residency"])["where"] != where:
            if time.monotonic() > deadline:
                raise WorkerError(f"{self.id} is {now['where']} and not {where}: {now['why']}")
            time.sleep(0.0005)

    def ask_away(self) -> None:
        """As soon as it may be: what a call has brought back stays for a moment."""
        from gpushare.errors import CannotMoveError

        deadline = time.monotonic() + _MOVE_SECONDS
        while True:
            try:
                self.context.stage.client.suspend(self.id)
                return
            except CannotMoveError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def ask_back(self) -> None:
        self.context.stage.client.resume(self.id)

    def away(self) -> None:
        self._comes_to("suspended")

    def back(self) -> None:
        self._comes_to("resident")

    def suspend(self) -> None:
        self.ask_away()
        self.away()

    def resume(self) -> None:
        self.ask_back()
        self.back()


@contextmanager
def _tenant(context: Context) -> Iterator[Tenant]:
    count, each = _sizes(context)
    argv = context.stage.python("resident.py")
    with context.stage.start("gpushare", argv, memory=count * each + 2 * GIB, options=LENDS) as worker:
        worker.ask(f"alloc {count} {each}", _MOVE_SECONDS)
        yield Tenant(context, worker, count * each)


def _seconds(*acts: Callable[[], None]) -> float:
    began = time.perf_counter()
    for act in acts:
        act()
    return time.perf_counter() - began


def _same(context: Context, tenant: Tenant, name: str) -> None:
    answer: Json = tenant.worker.ask("same", _MOVE_SECONDS)
    context.row(
        f"{name}: words that are not what they were", answer["wrong"], against=f"{answer['words']} words", limit=0
    )


def _rates(context: Context) -> None:
    """A suspend makes and pins its host memory first; at a resume that is there."""
    with _tenant(context) as tenant:
        found: dict[str, list[float]] = {"suspend": [], "resume": [], "out": [], "in": []}
        tenant.worker.ask("copy out", _MOVE_SECONDS)
        for _ in range(context.repeats(7)):
            for way in ("out", "in"):
                found[way].append(tenant.worker.ask(f"copy {way}", _MOVE_SECONDS)["ns"] / 1e9)
            found["suspend"].append(_seconds(tenant.suspend))
            found["resume"].append(_seconds(tenant.resume))
        for name, way in (("suspend", "out"), ("resume", "in")):
            took, plain = spread(found[name]), spread(found[way])
            gbps = tenant.size / plain.median / 1e9
            rates = Spread(*(tenant.size / ns / 1e9 for ns in (took.median, took.high, took.low)), took.n)
            context.row(f"{name} of {tenant.size >> 20} MiB", rates, "GB/s", against=f"a plain copy {gbps:.4g} GB/s")
            context.row(
                f"{name}: time against a plain copy of the same bytes",
                took.median / plain.median,
                "times",
                against=f"the program's own copies, {plain.median * 1000:.4g} ms",
                limit=1 / PREPARED_PART if name == "resume" else None,
            )
        _same(context, tenant, "after all moves")


def _wakes(context: Context) -> None:
    with _tenant(context) as tenant:
        copy = statistics.median(
            tenant.worker.ask("copy in", _MOVE_SECONDS)["ns"] / 1e6 for _ in range(context.repeats(5))
        )
        waits = []
        for _ in range(context.repeats(30)):
            tenant.suspend()
            waits.append(tenant.worker.ask("touch", _MOVE_SECONDS)["ns"] / 1e6)
            tenant.back()
        waits.sort()
        for quantile, at in (("p50", len(waits) // 2), ("max", -1)):
            context.row(
                f"a call of a suspended program until its return, {quantile} of {len(waits)}",
                waits[at],
                "ms",
                against=f"a plain copy {copy:.4g} ms",
                limit=copy + WAKE_MS,
            )


def _exchange(context: Context) -> None:
    with _tenant(context) as one, _tenant(context) as other:
        together, alone = [], []
        other.suspend()
        for _ in range(context.repeats(5)):
            together.append(_seconds(one.ask_away, other.ask_back, one.away, other.back))
            alone.append(_seconds(other.suspend))
            one.resume()
        value = statistics.median(both / way for both, way in zip(together, alone, strict=True))
        context.row(
            f"{one.size >> 20} MiB out while as much comes in",
            value,
            "times a suspend alone",
            against=f"{spread(alone).median * 1000:.4g} ms",
            limit=EXCHANGE_PART,
        )
        _same(context, one, "after exchanges")


def _calls(context: Context) -> None:
    """Bare: what the driver takes to back addresses with memory, and to pin memory of the host."""
    with context.stage.start("bare", context.stage.python("resident.py")) as worker:
        for name, size in context.some(list(PIECES.items()), 2):
            answer = worker.ask(f"calls {context.repeats(16)} {size}", _MOVE_SECONDS)
            values = {what: answer[what] / 1000 for what in ("create", "map", "access", "unmap")}
            context.compare(f"backing an address with a handle of {name}", "us", values)
        size = 8 * MIB if context.simulated else GIB
        answer = worker.ask(f"pin {size}", _MOVE_SECONDS)
        values = {what: size / answer[f"{what}_ns"] for what in ("fill", "register")}
        context.compare("filling and pinning a memory file of the host", "GB/s", values)


def _allocations(context: Context) -> None:
    argv = context.stage.python("resident.py")
    for name, size in context.some(list(PIECES.items())):
        with (
            context.stage.start("bare", argv) as bare,
            context.stage.start("gpushare", argv, memory=4 * GIB) as keeps,
            context.stage.start("gpushare", argv, memory=4 * GIB, options=LENDS) as lends,
        ):
            arms = {"bare": bare, "keeps": keeps, "lends": lends}
            values = {arm: worker.ask(f"pairs 20 {size}")["ns"] / 1000 for arm, worker in arms.items()}
            context.compare(f"an allocation of {name} and its free", "us", values)


def _steps(context: Context) -> None:
    stage = context.stage
    with stage.load("gpushare") as keeps, stage.load("gpushare", options=LENDS) as lends:
        found: dict[Worker, list[float]] = {keeps.set(STEP): [], lends.set(STEP): []}
        for index in range(context.repeats(20)):
            for worker in (keeps, lends) if index % 2 else (lends, keeps):
                found[worker].append(rate(window(context.seconds(1), worker)[0]))
        lost = spread([100 * (1 - moves / stays) for stays, moves in zip(found[keeps], found[lends], strict=True)])
        context.row("steps of a program that can be moved", lost, "% fewer", against="keeping", limit=STEP_PERCENT)


def _torch(context: Context) -> None:
    """The sum of 8 GiB of PyTorch's, computed by the device before and after."""
    argv = context.stage.python("torch_resident.py", str(BYTES))
    with context.stage.start("gpushare", argv, memory=BYTES + 4 * GIB, options=LENDS) as worker:
        tenant = Tenant(context, worker, BYTES)
        before = worker.ask("sum", _MOVE_SECONDS)["sum"]
        wrong = 0
        for _ in range(context.repeats(5)):
            tenant.suspend()
            wrong += worker.ask("sum", _MOVE_SECONDS)["sum"] != before
            tenant.back()
        hosted = context.stage.client.grant(tenant.id)["devices"][0]["memory_hosted_bytes"]
        context.row("PyTorch's sums after a suspend that are others", wrong, against="8 GiB of int32", limit=0)
        context.row("PyTorch's memory that is away after a sum", hosted / MIB, "MiB", limit=0)


def measure(context: Context) -> None:
    context.stage.configure('[memory]\nhost_pool = "auto"\nmove_seconds = 60\n')
    for name, part in (
        ("suspend and resume", _rates),
        ("wakes", _wakes),
        ("exchange", _exchange),
        ("the driver's calls", _calls),
        ("allocations", _allocations),
        ("steps", _steps),
    ):
        with context.item(name):
            part(context)
    if context.has("torch"):
        with context.item("PyTorch"):
            _torch(context)
