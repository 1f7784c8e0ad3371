"""The order in which libraries are preloaded, and where the driver's are."""

import re
from collections.abc import Iterable, Sequence

SIZE_MAX = 65536  # bytes of an ld.so.preload that are read
DRIVERS = ("libcuda.so", "libnvidia-ml.so")
DRIVER_NAME = re.compile(r"lib(cuda|nvidia-ml)\.so(\.[0-9.]+)?")

LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
)
"""Directories where distributions, driver packages and container toolkits put the driver's libraries."""


def split(variable: str) -> list[str]:
    """Splits the value of LD_PRELOAD, whose separators are colons and spaces."""
    return [path for path in re.split(r"[: ]", variable) if path]


def named(file: bytes) -> list[str]:
    """Returns what an ld.so.preload names, as the loader reads it: separated by white space or colons, up to the first
    NUL, with comments from # to the end of a line."""
    text = file.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return [name for line in text.split("\n") for name in re.split(r"[: \t]", line.partition("#")[0]) if name]


def text(libraries: Iterable[str]) -> bytes:
    """Returns the content of ld.so.preload for these libraries. An image's paths need not be UTF-8."""
    return ("\n".join(libraries) + "\n").encode("utf-8", "surrogateescape")


def ordered(theirs: Iterable[str], ours: Sequence[str]) -> list[str]:
    """Returns `theirs` combined with `ours`, each of ours once.

    Theirs come first, so that a library that wraps driver functions is called, and finds ours as the next definition as
    it would find the driver. A driver library comes last: the first libcuda.so.1 in the process serves every lookup.
    """
    others = [path for path in theirs if path not in ours]
    drivers = [path for path in others if DRIVER_NAME.fullmatch(path.rpartition("/")[2])]
    return [*(path for path in others if path not in drivers), *ours, *drivers]
