"""A hostile tenant, or a hostile member of group `gpushare`, as a program: attacks from a menu, each by its own seed.

    hostile.py tenant|member SOCKET     as uid and gid 1000 or 1001; a tenant makes itself a grant first

Commands and answers are JSON lines: {"attack": NAME, "seed": N, "scale": N} is answered {"attack": NAME, "error": why
it could not be done, or null}. The first line names the grant, if any. What an attack opens may stay open during later
ones.
"""

import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GID = 1000  # of the node's socket, as group gpushare
UIDS = {"tenant": 1000, "member": 1001}
GRANT = {"memory": "1GiB", "time": "20%", "ttl_seconds": 30, "idle_memory": "lend"}
HELD_MAX = 400  # descriptors that attacks leave open; the oldest are closed
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def dies_with_parent() -> None:
    """For a child: even if stopped, it ends with the program, however that ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Hostile:
    """State shared by attacks. `directory`: of the grant; `scale`: multiplies counts, 1 for quick tests."""

    def __init__(self, socket_path: Path, directory: Path | None, environment: dict[str, str]) -> None:
        self.socket_path, self.directory, self.environment = socket_path, directory, environment
        self.random, self.scale = random.Random(0), 1
        self.held: list[Any] = []
        self.children: list[int] = []
        self.bell: int | None = None
        self.joined: tuple[int, int] | None = None

    def hold(self, thing: Any) -> Any:
        """Keeps something open."""
        self.held.append(thing)
        if len(self.held) > HELD_MAX:
            old = self.held.pop(0)
            with contextlib.suppress(OSError):
                old.close() if hasattr(old, "close") else os.close(old)
        return thing

    def fork(self, work: Callable[[], None]) -> int:
        """Forks a child that does `work` and exits; it is reaped later."""
        pid = os.fork()
        if pid == 0:
            dies_with_parent()
            signal.alarm(30)
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, 0)
            os.dup2(nowhere, 1)
            with contextlib.suppress(BaseException):
                work()
            os._exit(0)
        self.children.append(pid)
        return pid

    def reap(self) -> None:
        for pid in list(self.children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self.children.remove(pid)

    def count(self, least: int, most: int) -> int:
        """A random count from `least` to `most` times the scale."""
        return self.random.randint(least, max(least, most * self.scale))


def menus(role: str) -> dict[str, Callable[[Hostile], None]]:
    """A role's attacks, by name."""
    if (here := str(Path(__file__).parents[1])) not in sys.path:
        sys.path.insert(0, here)
    if role == "member":
        from hostile import node as hostilenode

        return hostilenode.MENU
    from hostile import joins as hostilejoin
    from hostile import moves as hostilemoves
    from hostile import own as hostileself
    from hostile import page as hostilepage

    return {**hostilepage.MENU, **hostilejoin.MENU, **hostileself.MENU, **hostilemoves.MENU}


def main() -> None:
    role, path = sys.argv[1], Path(sys.argv[2])
    # Imports everything before it drops root: the interpreter's directory may be closed to the other user.
    import encodings.idna

    from gpushare.client import Client, transport
    from gpushare.errors import GpushareError

    assert transport and encodings.idna
    menu = menus(role)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), min(hard, 4096)))
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when the daemon opens a file with a lease
    os.setgroups([])
    os.setgid(GID)
    os.setuid(UIDS[role])
    directory, environment = None, {}
    if role == "tenant":
        client = Client(path)
        environment = client.bind(client.create(**GRANT)["id"], "process")["env"]
        directory = Path(environment["GPUSHARE_GRANT_DIR"])
    hostile = Hostile(path, directory, environment)
    print(json.dumps({"grant": directory.parent.name if directory is not None else None}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        hostile.random, hostile.scale = random.Random(command["seed"]), command["scale"]
        error = None
        try:
            menu[command["attack"]](hostile)
        except (OSError, ValueError, GpushareError) as failure:
            error = repr(failure)
        hostile.reap()
        print(json.dumps({"attack": command["attack"], "error": error}), flush=True)
    for pid in hostile.children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
