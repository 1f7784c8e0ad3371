"""What a program does with memory that a test moves."""

from pages.handmade import Simulator
from run.interposed import Interposed

MIB = 1 << 20

AWAY = """
    import threading
    def start(function):
        def run():
            ok(d.cuCtxSetCurrent(ctx))
            results.append(function())
        thread = threading.Thread(target=run)
        thread.start()
        return thread
    results = []
"""
"""For a worker: calls in threads of their own."""


def held(sim: Simulator, worker: Interposed) -> int:
    return sum(row["bytes"] for row in sim.books()["devices"][0]["processes"] if row["pid"] == worker.pid)


def filled(worker: Interposed, name: str, size: int, seed: int) -> None:
    """An allocation with bytes that are its own everywhere."""
    worker.do(f"""
        import random
        {name} = ok(d.cuMemAlloc({size}))
        {name}_bytes = random.Random({seed}).randbytes({size})
        ok(d.cuMemcpyHtoD({name}, {name}_bytes, {size}))
    """)


def same(worker: Interposed, name: str) -> bool:
    worker.do(f"""
        back = bytearray(len({name}_bytes))
        ok(d.cuMemcpyDtoH(back, {name}, len({name}_bytes)))
    """)
    return bool(worker.get(f"bytes(back) == {name}_bytes"))
