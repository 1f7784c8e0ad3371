"""Cases 4 and 5 of README.md: loading the interposer without side effects."""

import os
import subprocess
from collections.abc import Callable

from pages.handmade import Grant, Simulator
from run.driverclient import Client

from gpushare import paths


def exported(library: str) -> set[str]:
    out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in out.splitlines()}


def test_04_dlsym_recursion() -> None:
    """Elsewhere: the library replaces dlsym, finds itself, needs functions that a newer libc no longer has, or spins in
    a program that looks up thousands of names. Here: it replaces nothing of libc; a program's dlsym is libc's. The
    interposer is found by its name, libcuda.so.1, and opens the real driver by path."""
    names = exported(f"/lib/{os.uname().machine}-linux-gnu/libc.so.6")
    assert {"dlsym", "dlopen", "malloc"} <= names
    for library in (paths.INTERPOSER, paths.INTERPOSER_ML):
        ours = exported(str(library))
        assert ours
        assert not ours & names


BEFORE_INIT = ["info", "alloc 512", "sync", "free 0", "total 0", "retain 0", "ctx 0", "nulls"]
NO_CONTEXT = ["info", "alloc 512", "managed 512", "async 512", "create 2097152", "array 4 4", "sync", "freeat 4096"]
ODD = ["ctx 99", "retain 99", "total 99", "nulls", "freeat 1", "alloc 0", "pitch 0 0"]


def test_05_null_or_no_context(grant: Grant, sim: Simulator, start: Callable[..., Client]) -> None:
    """Elsewhere: a call with a NULL out-pointer, before cuInit, or from a thread without a context crashes in the
    accounting. Here: each returns the driver's own answer, and nothing is charged."""
    bare, ours = start(None), start(grant)
    for phase in (BEFORE_INIT, ["init"], NO_CONTEXT, ["retain 0"], ODD):
        for command in phase:
            assert ours(command) == bare(command), command
    rows = {row["pid"]: row["bytes"] for row in sim.books()["devices"][0]["processes"]}
    assert rows[ours.pid] == rows[bare.pid]
    assert ours("info").two - ours("info").one == rows[ours.pid], "what is charged is what the device has given"
    assert ours.end() == ""
