"""Part 8: what the kernel half of the driver is asked for, seen from inside the process (native/iolog.c), and what it
lets one process do to the work of another."""

import re
from collections import Counter
from pathlib import Path

from gpubench.context import Context
from gpubench.parts import controls
from gpubench.worker import Worker, WorkerError, window

RM_ALLOC = 0x2B
ALLOCATING = {0x27: "ALLOC_MEMORY", 0x2B: "RM_ALLOC", 0x4A: "VID_HEAP_CONTROL"}
MEMORY = {
    0x3E: "system memory",
    0x40: "device memory",
    0x42: "extended memory",
    0x70: "addresses",
    0x50A0: "addresses",
    0x71: "the program's own pages",
    0x82: "listed pages",
    0xC2: "a device's physical memory",
}
"""Classes of RM_ALLOC."""
Call = tuple[str, int, int, int]  # device file, number, size, class or command


def _calls(log: Path, skip: int = 0) -> tuple[list[Call], list[tuple[str, int]], int]:
    """ioctls, mappings (file, bytes; shared and writable only), and how many lines there are."""
    lines = log.read_text().splitlines() if log.exists() else []
    calls, maps = [], []
    for line in lines[skip:]:
        kind, file, *rest = line.split()
        if kind == "ioctl":
            calls.append((Path(file).name, int(rest[0], 16), int(rest[1]), int(rest[2], 16)))
        elif kind == "mmap" and rest[1:] == ["1", "1"]:
            maps.append((Path(file).name, int(rest[0])))
    return calls, maps, len(lines)


def _kind(nr: int, second: int) -> str:
    return MEMORY[second] if nr == RM_ALLOC else "class or function"


def _shown(calls: list[Call]) -> str:
    made = [call[1:] for call in calls if "uvm" not in call[0] and call[1] in ALLOCATING]
    found = Counter(call for call in made if call[0] != RM_ALLOC or call[2] in MEMORY)
    texts = [
        f"{count} x {ALLOCATING[nr]} ({size} bytes, {_kind(nr, second)} 0x{second:x})"
        for (nr, size, second), count in found.items()
    ]
    others = len(made) - found.total()
    return "; ".join([*texts, *([f"RM_ALLOC of {others} objects that are no memory"] if others else [])]) or "none"


def _environment(context: Context, log: Path, **more: str) -> dict[str, str]:
    return {"LD_PRELOAD": context.stage.program("iolog.so"), "IOLOG": str(log), **more}


def _steps(context: Context, log: Path) -> bool:
    """False when the log saw nothing: a driver that does not call the C library's ioctl tells nothing."""
    stage = context.stage
    seen, found = 0, []
    argv = [stage.program("steps"), stage.spin_ptx]
    with stage.start("bare", argv, environment=_environment(context, log)) as worker:
        for step in ("init", "context", "module", "launch", "alloc 4KiB", "alloc 64MiB", "pool 64MiB"):
            worker.ask(step)
            calls, maps, seen = _calls(log, seen)
            found.append((step, calls, [size for file, size in maps if file == "nvidia-uvm"]))
    if not any(calls for _, calls, _ in found):
        context.skip("no ioctl of the driver went through the C library: nothing is known about them")
        return False
    for step, calls, uvm in found:
        context.row(f"{step}: allocating ioctls", None, text=_shown(calls), against=f"{len(calls)} ioctls in all")
        addresses = f"{sum(uvm) / (1 << 20):.4g} MiB of addresses"
        context.row(f"{step}: shared writable mappings of nvidia-uvm", len(uvm), against=addresses)
    return True


def _launches(context: Context, log: Path) -> None:
    stage = context.stage
    with stage.start("bare", stage.load_argv(), environment=_environment(context, log)) as worker:
        window(context.seconds(1), worker)
        before = _calls(log)[2]
        launched = window(context.seconds(1), worker)[0]["kernels"]
        calls, _, _ = _calls(log, before)
    context.row("ioctls while launching", len(calls), against=f"{launched} launches")


def _denied(context: Context, log: Path) -> None:
    """-ENOMEM to every allocation of device memory: what the program sees, and whether its context lives."""
    stage = context.stage
    deny = Path(f"{log}.deny")
    with stage.start("bare", stage.load_argv(), environment=_environment(context, log, IOLOG_DENY="1")) as worker:
        deny.touch()
        refused = _tried(worker)
        deny.unlink()
        after = _tried(worker)
        works = _works(context, worker)
    if " denied" not in log.read_text():
        context.skip("no allocating ioctl was seen to be denied")
        return
    context.row("cuMemAlloc of 256 MiB while the kernel says ENOMEM", None, text=refused)
    context.row("and when it no longer says so", None, text=after)
    context.row("kernels afterwards", None, text=works)


def _tried(worker: Worker) -> str:
    try:
        return str(worker.ask("try 256MiB")["name"])
    except WorkerError as error:
        return _end(error)


def _works(context: Context, worker: Worker) -> str:
    try:
        return f"CUDA_SUCCESS: {window(context.seconds(0.5), worker)[0]['kernels']} run"
    except WorkerError as error:
        return _end(error)


def _end(error: WorkerError) -> str:
    """By the code that the program ended with, where it said one."""
    code = re.search(r'"name": "(\w+)"', str(error))
    return f"the program ended with {code[1]}" if code else f"the program ended: {str(error)[-200:]}"


def measure(context: Context) -> None:
    work = context.stage.work
    if _steps(context, work / "iolog-steps"):
        with context.item("ioctls while launching"):
            _launches(context, work / "iolog-launches")
        with context.item("ENOMEM of the kernel"):
            _denied(context, work / "iolog-denied")
    with context.item("controls on another process"):
        controls.measure(context)
