"""A copy of a root that has systemd, booted in its own namespaces: to test what a package asks of systemd, and the
daemon's unit under it. It ends with the test, along with every process started in it."""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import cgroups
from run.waiting import until

from gpushare.enforce.cgroup import Cgroup, Hierarchies

# $1: a folder of the test; $2: the root to copy; $3: a folder that appears at /mnt.
BOOT = """\
set -e
over=$1/over root=$1/root lower=$2 shared=$3
mount -t tmpfs none "$over"
mkdir "$over/upper" "$over/work"
mount -t overlay overlay -o lowerdir="$lower",upperdir="$over/upper",workdir="$over/work" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sys sys
mount -t cgroup2 cgroup sys/fs/cgroup
for place in run tmp dev; do mount -t tmpfs none $place; done
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/shm; mount -t tmpfs none dev/shm
mount --bind "$shared" mnt
cat >etc/systemd/system/script.service <<'END'
[Unit]
After=basic.target
[Service]
ExecStart=/bin/sh -c '/bin/bash /mnt/script >/mnt/said 2>&1; echo $$? >/mnt/.ended; mv /mnt/.ended /mnt/ended'
END
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s ../script.service etc/systemd/system/multi-user.target.wants
mkdir -p old
pivot_root . old
umount -l /old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --show-status=0
"""


@contextlib.contextmanager
def own_cgroup() -> Iterator[Path]:
    """A cgroup of version 2, which systemd sees as the whole hierarchy. Skips the test if there is no cgroup v2."""
    unified = Hierarchies.of().unified
    if unified is None:
        pytest.skip("no cgroup v2 here, which systemd needs")
    group = Cgroup(unified / f"{cgroups.NAME}-systemd", v2=True)
    group.make()
    try:
        yield group.path
    finally:
        group.kill()
        until(group.remove)


def booted(directory: Path, lower: Path, script: str, *, seconds: float = 90) -> tuple[int, str]:
    """Runs a shell script as a service for at most `seconds`; returns its status and output. `directory`: empty, except
    perhaps for `shared`."""
    shared = directory / "shared"
    for name in ("over", "root", "shared"):
        (directory / name).mkdir(exist_ok=True)
    (shared / "script").write_text(script)
    with own_cgroup() as group:
        enter = ["unshare", "--mount", "--propagation", "private", "--pid", "--cgroup", "--uts", "--ipc", "--fork"]
        command = shlex.join(
            [*enter, "--kill-child", "sh", "-c", BOOT, "sh", *map(os.fspath, (directory, lower, shared))]
        )
        join = f"echo $$ >{group}/cgroup.procs; exec {command}"
        with open(directory / "log", "wb") as log, subprocess.Popen(["sh", "-c", join], stdout=log, stderr=log) as init:
            try:
                until(lambda: (shared / "ended").exists() or init.poll() is not None, "the script's end", seconds)
            finally:
                init.kill()
    if not (shared / "ended").exists():
        pytest.fail(f"systemd ended: {(directory / 'log').read_text()[-2000:]}")
    return int((shared / "ended").read_text()), (shared / "said").read_text()
