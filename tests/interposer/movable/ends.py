"""Makes and ends memory of cuMemAlloc in all the ways there are, and prints what each call answered (answers.py)."""

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from driver import GIB, GLOBAL, MIB, RELAXED, THREAD_LOCAL, at, call, context, made, memory, number, ok

Answers = dict[str, Any]
SIZES = {"64 KiB": 64 << 10, "3 MiB + 7": 3 * MIB + 7}
MODES = {"global": GLOBAL, "thread-local": THREAD_LOCAL, "relaxed": RELAXED}


def left() -> int:
    free, total = number(), number()
    ok("cuMemGetInfo_v2", at(free), at(total))
    return free.value


def missing(before: int) -> int:
    """What is not free again of what was before. The driver may take a moment longer where work used it."""
    began = time.monotonic()
    while left() != before and time.monotonic() - began < 10:
        time.sleep(0.001)
    return before - left()


def known(address: int) -> int:
    return call("cuMemGetAddressRange_v2", at(number()), at(number()), address)


def attribute(address: int) -> int:
    return call("cuPointerGetAttribute", at(number()), 1, address)


def told(address: int) -> list[int]:
    return [known(address), attribute(address)]


def full(bytes: int) -> list[Any]:
    """All that fit, and the answer to the first that does not."""
    kept, place, before = [], number(), left()
    while (result := call("cuMemAlloc_v2", at(place), bytes)) == 0:
        kept.append(place.value)
    rest = left()
    for each in kept:
        ok("cuMemFree_v2", each)
    return [len(kept), result, rest // MIB, missing(before)]


def beside(work: Callable[[], Any]) -> Any:
    """In another thread, which has no context."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def in_context(ctx: int, work: Callable[[], Any]) -> Any:
    ok("cuCtxPushCurrent_v2", ctx)
    try:
        return work()
    finally:
        ok("cuCtxPopCurrent_v2", at(number()))


def capturing(mode: int, work: Callable[[], Any]) -> list[Any]:
    """What work returns during a capture, and what then became of the capture."""
    stream, status, graph = made("cuStreamCreate", 0), number(), number()
    ok("cuStreamBeginCapture_v2", stream, mode)
    found = work()
    ok("cuStreamIsCapturing", stream, at(status))
    end = call("cuStreamEndCapture", stream, at(graph))
    nodes = number()
    if end == 0 and graph.value:
        ok("cuGraphGetNodes", graph.value, 0, at(nodes))
        ok("cuGraphDestroy", graph.value)
    ok("cuStreamDestroy_v2", stream)
    return [found, status.value, end, nodes.value]


class Ends:
    def __init__(self) -> None:
        self.first = context()
        self.other = made("cuCtxCreate_v2", 0, 0)
        ok("cuCtxSetCurrent", self.first)

    def asked(self) -> Answers:
        """Sizes and places that are refused, and memory to its end."""
        place, answers = number(), {}
        for bytes in (0, 1, MIB, MIB + 1, 1 << 40, 1 << 47, 1 << 63, (1 << 64) - 1):
            result = call("cuMemAlloc_v2", at(place), bytes)
            answers[f"cuMemAlloc of {bytes}"] = [result, result == 0 and call("cuMemFree_v2", place.value)]
            answers[f"cuMemAlloc of {bytes} to nowhere"] = call("cuMemAlloc_v2", 0, bytes)
        for width, height, element in itertools.product((0, 1 << 20, 1 << 62), (0, 3, 1 << 62), (3, 4)):
            result = call("cuMemAllocPitch_v2", at(place), at(number()), width, height, element)
            what = f"cuMemAllocPitch of {width}, {height}, {element}"
            answers[what] = [result, result == 0 and call("cuMemFree_v2", place.value)]
        return answers | {f"full of {name}": full(bytes) for name, bytes in SIZES.items() if bytes > MIB}

    def places(self) -> Answers:
        """Where a thread may free memory."""
        answers: Answers = {}
        for name, bytes in SIZES.items():
            before = left()
            one = memory(bytes)
            answers[f"{name}: aligned"] = one % 256
            answers[f"{name}: allocated without a context"] = beside(
                lambda: call("cuMemAlloc_v2", at(number()), 3 * MIB)
            )
            answers[f"{name}: asked without a context"] = beside(lambda one=one: told(one))
            answers[f"{name}: asked in another context"] = in_context(self.other, lambda one=one: told(one))
            answers[f"{name}: freed without a context"] = beside(lambda one=one: call("cuMemFree_v2", one))
            answers[f"{name}: then"] = [*told(one), missing(before)]
            one = memory(bytes)
            answers[f"{name}: freed in another context"] = in_context(
                self.other, lambda one=one: call("cuMemFree_v2", one)
            )
            answers[f"{name}: after that"] = [*told(one), missing(before), call("cuMemFree_v2", one)]
            stream, one = made("cuStreamCreate", 0), memory(bytes)
            answers[f"{name}: freed in order"] = call("cuMemFreeAsync", one, stream)
            ok("cuCtxSynchronize")
            answers[f"{name}: after its stream"] = [*told(one), missing(before), call("cuMemFreeAsync", one, stream)]
            ok("cuStreamDestroy_v2", stream)
        stream, one, place = made("cuStreamCreate", 0), memory(GIB), number()
        answers["freed in order, and allocated again"] = [
            call("cuMemFreeAsync", one, stream),
            call("cuMemAlloc_v2", at(place), GIB + 512 * MIB),
            call("cuMemFree_v2", place.value),
        ]
        ok("cuStreamDestroy_v2", stream)
        return answers

    def contexts(self) -> Answers:
        """Memory ends with its context."""
        answers: Answers = {}
        for name, bytes in SIZES.items():
            before = left()
            gone = made("cuCtxCreate_v2", 0, 0)
            one = memory(bytes)
            ok("cuCtxDestroy_v2", gone)
            ok("cuCtxSetCurrent", self.first)
            answers[f"{name}: its context is destroyed"] = [*told(one), call("cuMemFree_v2", one), missing(before)]
            primary = made("cuDevicePrimaryCtxRetain", 0)
            one = in_context(primary, lambda bytes=bytes: memory(bytes))
            answers[f"{name}: of the primary context"] = told(one)
            ended = call("cuDevicePrimaryCtxReset_v2", 0)
            answers[f"{name}: it is reset"] = [ended, *told(one), call("cuMemFree_v2", one), missing(before)]
        return answers

    def captures(self) -> Answers:
        answers: Answers = {}
        for (how, mode), (name, bytes) in itertools.product(MODES.items(), SIZES.items()):
            before, place, stream = left(), number(), made("cuStreamCreate", 0)

            def allocated(place: Any = place, bytes: int = bytes) -> int:
                return call("cuMemAlloc_v2", at(place), bytes)

            def allocated_beside(allocated: Callable[[], int] = allocated) -> Any:
                return beside(lambda: in_context(self.first, allocated))

            kept = memory(bytes)
            for what, work in {
                "allocated": allocated,
                "allocated by another thread": allocated_beside,
                "rows": lambda place=place, bytes=bytes: call(
                    "cuMemAllocPitch_v2", at(place), at(number()), bytes, 2, 4
                ),
            }.items():
                answers[f"{how}, {name}: {what}"] = capturing(mode, work)
                answers[f"{how}, {name}: {what}, then freed"] = [place.value and call("cuMemFree_v2", place.value)]
                place.value = 0
            answers[f"{how}, {name}: asked"] = capturing(mode, lambda kept=kept: told(kept))
            answers[f"{how}, {name}: freed"] = capturing(mode, lambda kept=kept: call("cuMemFree_v2", kept))
            answers[f"{how}, {name}: then"] = [*told(kept), call("cuMemFree_v2", kept), missing(before)]
            kept = memory(bytes)
            work = lambda kept=kept: beside(lambda: in_context(self.first, lambda: call("cuMemFree_v2", kept)))  # noqa: E731
            answers[f"{how}, {name}: freed by another thread"] = capturing(mode, work)
            answers[f"{how}, {name}: after that"] = [*told(kept), call("cuMemFree_v2", kept), missing(before)]
            kept = memory(bytes)
            free = lambda kept=kept, stream=stream: call("cuMemFreeAsync", kept, stream)  # noqa: E731
            answers[f"{how}, {name}: freed in order, elsewhere"] = capturing(mode, free)
            ok("cuCtxSynchronize")
            answers[f"{how}, {name}: at last"] = [*told(kept), call("cuMemFree_v2", kept), missing(before)]
            ok("cuStreamDestroy_v2", stream)
        return answers

    def narrow(self) -> Answers:
        """The functions whose addresses have 32 bits."""
        before, answers = left(), {}
        for name, bytes in SIZES.items():
            place, base, size = number(), number(), number()
            answers[f"{name}: allocated"] = [call("cuMemAlloc", at(place), bytes), place.value >> 32]
            answers[f"{name}: range"] = [
                call("cuMemGetAddressRange", at(base), at(size), place.value + 9),
                base.value - place.value,
                size.value,
            ]
            answers[f"{name}: asked"] = told(place.value)
            answers[f"{name}: taken"] = before - left()
            answers[f"{name}: freed"] = [call("cuMemFree", place.value), *told(place.value), missing(before)]
            place, pitch = number(), number()
            answers[f"{name}: rows"] = [call("cuMemAllocPitch", at(place), at(pitch), bytes, 2, 4), pitch.value]
            answers[f"{name}: rows freed"] = [call("cuMemFree", place.value), missing(before)]
        return answers


def main() -> None:
    program = Ends()
    for line in sys.stdin:
        print(json.dumps(getattr(program, line.strip())()), flush=True)


if __name__ == "__main__":
    main()
