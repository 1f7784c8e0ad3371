"""The stage of a scenario: a temporary directory with its own daemon, completely removed afterwards."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpushare.demo.interrupts import interruptible, uninterrupted
from gpushare.demo.node import Node
from gpushare.errors import FailedError

CGROUPS = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 30.0


@contextlib.contextmanager
def stage(
    say: Callable[[str], None], simulate: str = "", model: Mapping[str, str] | None = None
) -> Iterator[tuple[Node, Path, Any]]:
    """Yields (node, directory for files, facts of the node). `simulate`, `model`: as in Node.start. Raises
    GpushareError."""
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(interruptible())
        with uninterrupted():
            # Short, because a socket's path has at most 107 bytes.
            where = Path(tempfile.mkdtemp(prefix="gpushare-demo-"))
            cleanup.callback(_remove, where)
        cleanup.callback(say, "taking everything away")
        say("starting a daemon of its own")
        node = Node(where / "node")
        (where / "node").mkdir()
        cleanup.callback(node.end)
        yield node, where, node.start(simulate, model)


@uninterrupted()
def _remove(where: Path) -> None:
    for parent in (CGROUPS, *CGROUPS.iterdir()):
        # The runtime removes each container's cgroup, but not the parent that it created for all of them.
        with contextlib.suppress(OSError):
            (parent / "gpushare-demo").rmdir()
    # A process that is exiting may still create files there.
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        shutil.rmtree(where, ignore_errors=True)
        if not where.exists():
            return
        if time.monotonic() > deadline:
            raise FailedError(f"{where} cannot be removed")
        time.sleep(0.05)
