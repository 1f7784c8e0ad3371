"""The order in which libraries are preloaded."""

import re
from collections.abc import Iterable, Sequence

DRIVERS = ("libcuda.so", "libnvidia-ml.so")
DRIVER_NAME = re.compile(r"lib(cuda|nvidia-ml)\.so(\.[0-9.]+)?")


def split(variable: str) -> list[str]:
    """The libraries that LD_PRELOAD names: the loader takes colons and spaces."""
    return [path for path in re.split(r"[: ]", variable) if path]


def text(libraries: Iterable[str]) -> bytes:
    """What ld.so.preload holds for them. An image's paths need not be UTF-8."""
    return ("\n".join(libraries) + "\n").encode("utf-8", "surrogateescape")


def ordered(theirs: Iterable[str], ours: Sequence[str]) -> list[str]:
    """`theirs` with `ours`, each of ours once.

    Theirs come first: one that wraps functions of the driver is then called, and finds ours behind it as it would
    find the driver. A driver itself comes last: the first libcuda.so.1 of the process answers every program.
    """
    others = [path for path in theirs if path not in ours]
    drivers = [path for path in others if DRIVER_NAME.fullmatch(path.rpartition("/")[2])]
    return [*(path for path in others if path not in drivers), *ours, *drivers]
