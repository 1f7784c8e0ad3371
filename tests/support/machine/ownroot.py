"""A copy of this machine's root or of another one, in which a test may change anything: an overlay in its own mount and
PID namespaces. It is gone when the test's command ends, along with every process started in it."""

import os
import subprocess
from pathlib import Path

import pytest

# $1: a folder of the test; $2: the root to copy; $3: the repository, which may be a mount itself, or below /tmp.
ENTER = """\
set -e
over=$1/over root=$1/root lower=$2 repository=$3; shift 3
mount -t tmpfs none "$over"
mkdir "$over/upper" "$over/work"
mount -t overlay overlay -o lowerdir="$lower",upperdir="$over/upper",workdir="$over/work" "$root"
mount -t proc proc "$root/proc"
for place in sys dev; do mount --rbind /$place "$root/$place"; done
for place in run tmp; do mount -t tmpfs none "$root/$place"; done
mkdir "$root/run/upper"
mount --bind "$over/upper" "$root/run/upper"
if [ "$lower" != / ]; then
  mkdir "$root/run/repository"
  mount --bind "$repository" "$root/run/repository"
  mount -o remount,bind,ro "$root/run/repository"
elif [ "$(findmnt -no TARGET -T "$repository")" != / ] || [ ! -e "$root$repository" ]; then
  mkdir -p "$root$repository" "$over/repository" "$over/unfinished"
  layers=lowerdir="$repository",upperdir="$over/repository",workdir="$over/unfinished"
  mount -t overlay overlay -o "$layers" "$root$repository"
fi
exec chroot "$root" "$@"
"""
# `changed`: lists files that differ from the machine's root, except those of the user database that it may lack.
HELPERS = """\
changed() { (cd /run/upper; find . ! -type d | grep -vE '__pycache__|^./etc/(group|gshadow|.pwd.lock)-?$' | sort); }
"""


class OwnRoot:
    """`directory`: empty, on a path without symlinks. `lower`: the root to copy."""

    def __init__(self, directory: Path, lower: Path = Path("/")) -> None:
        probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
        if probe.returncode:
            pytest.skip(f"no namespaces can be made here: {probe.stderr.decode()}")
        self._directory, self._lower = directory, lower
        for name in ("over", "root"):
            (directory / name).mkdir()

    def __call__(self, script: str) -> subprocess.CompletedProcess:
        """Runs a shell script as root in the copy."""
        enter = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        arguments = [self._directory, self._lower, Path(__file__).parents[3], "bash", "-euc", HELPERS + script]
        return subprocess.run(
            [*enter, "sh", "-c", ENTER, "sh", *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1"},
        )
