"""Commands as an ordinary user runs them, without any right of the test's."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare.processes.helper import NOBODY


def begun(command: Sequence[str], **environment: str) -> "subprocess.Popen[str]":
    """Starts a command as user nobody, with pipes. It replaces the process that is returned."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*prefix(), *command],
        env={**os.environ, **environment},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd="/",
    )


def prefix(uid: int = NOBODY) -> list[str]:
    """Before a command: makes it this user's."""
    become = f'exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"'
    return ["unshare", "--mount", "bash", "-ec", f"{_opened()}\n{become}", "become"]


def _opened() -> str:
    """A script that makes the interpreter reachable for all, in a mount namespace: on some machines it is root's
    own."""
    script = ["mount --make-rprivate /"]
    bases = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix)}
    for number, base in enumerate(bases):
        closed = [above for above in base.parents if not above.stat().st_mode & 0o001]
        if closed:
            held = f"/tmp/opened.$$.{number}"
            script += [f"mkdir {held}", f"mount --bind {base} {held}", f"mount -t tmpfs -o mode=755 none {closed[-1]}"]
            script += [f"mkdir -p {base}", f"mount --move {held} {base}", f"rmdir {held}"]
    return "\n".join(script)
