"""Without mount_setattr (before Linux 5.12), mounts are made read-only one by one."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import pathlib, sys
from gpushare.inject import mounts
from gpushare.sandbox import view

mounts.check(mounts.libc.unshare(0x20000), "unshare")
mounts.mount(None, pathlib.Path("/"), mounts.REC | mounts.SLAVE)
strange = pathlib.Path(sys.argv[1])
mounts.mount("tmpfs", strange, mounts.NOEXEC, kind="tmpfs")
view.shut(pathlib.Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
seen = {}
for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
    seen[line.split()[4]] = line  # the last one at a place covers the others
for line in seen.values():
    options, optional = line.split()[5].split(","), line.split(" - ")[0].split()[6:]
    assert {"ro", "nosuid", "nodev"} <= set(options), line
    assert "noexec" in options or "with" not in line, line
    assert not optional, line
"""


def test_mount_by_mount(tmp_path: Path) -> None:
    strange = tmp_path / "with space and é"
    strange.mkdir()
    subprocess.run([sys.executable, "-c", _PROGRAM, strange], check=True, timeout=60)
