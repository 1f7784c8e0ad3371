"""Programs of another architecture, run as if the kernel supported them: in their own user namespace, whose binfmt_misc
has qemu as an interpreter. The machine's own list of interpreters stays as it is."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from run.waiting import until

KNOWN = Path("/usr/lib/binfmt.d/qemu-aarch64.conf")  # comes with qemu-user-static
# $1: the interpreter's line; $2 on: a command. Flag F: the kernel opens qemu now, so that roots need not have it.
ENTER = """\
set -e
mount -t proc proc /proc
mount -t tmpfs none /dev/shm  # without what others have mounted there, which keeps it from being mounted elsewhere
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s "$1" >/proc/sys/fs/binfmt_misc/register
shift
exec "$@"
"""


def emulated(
    *command: object, log: Path, timeout: float, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command as root in such a namespace, with its own mount and PID namespaces. Ids up to 65535 are the
    machine's. Output goes to `log` as it comes. Skips the test if there is no qemu or no such namespace."""
    if not KNOWN.exists() or shutil.which("qemu-aarch64-static") is None:
        pytest.skip("no qemu-user-static here")
    line = f"{KNOWN.read_text().strip().rpartition(':')[0]}:FP"
    with tempfile.TemporaryDirectory() as directory:
        go, ready = Path(directory, "go"), Path(directory, "ready")
        os.mkfifo(go)
        wait = 'echo $$ >"$2.new"; mv "$2.new" "$2"; read -r word <"$1"; shift 2; exec "$@"'
        enter = ["unshare", "--user", "--mount", "--propagation", "private", "sh", "-c", wait, "sh", go, ready]
        inner = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", line, *map(str, command)]
        with (
            open(log, "a") as answer,
            subprocess.Popen([*enter, *inner], stdout=answer, stderr=answer, env=env) as process,
        ):
            try:
                until(lambda: ready.exists() or process.poll() is not None, "the namespace")
                if process.poll() is not None:
                    pytest.skip(f"no user namespace can be made here: {log.read_text()[-300:]}")
                for ids in ("uid_map", "gid_map"):
                    Path(f"/proc/{process.pid}/{ids}").write_text("0 0 65536\n")
                go.write_text("\n")
                status = process.wait(timeout)
            finally:
                process.kill()
    return subprocess.CompletedProcess([*map(str, command)], status, log.read_text())
