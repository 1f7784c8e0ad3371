"""Device nodes of a GPU that does not exist, in their own mount namespace, and what a container can do with them.

The kernel asks the device cgroup before it looks for the driver: an open that the cgroup permits fails with "no such
device", another one with "not permitted".
"""

import contextlib
import subprocess
from collections.abc import Iterator

NODES = {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255)}
OWN = "/dev/own"  # made by the container itself

_SCRIPT = """
set -e
where=$(mktemp -d)
mount -t tmpfs -o mode=755 dev "$where"
cp --archive /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$where"
chmod 666 "$where"/*
mknod -m 666 "$where/nvidia0" c 195 0
mknod -m 666 "$where/nvidiactl" c 195 255
mkdir "$where/pts" "$where/shm"
mount --rbind /dev/pts "$where/pts"
mount --rbind /dev/shm "$where/shm"
ln -s /proc/self/fd "$where/fd"
ln -s pts/ptmx "$where/ptmx"
mount --move "$where" /dev
rmdir "$where"
test "$1" = both || umount /sys/fs/cgroup/unified 2>/dev/null || true
echo up
exec sleep infinity
"""

PROBE = f"""
mknod {OWN} c 195 0 2>/dev/null
for node in {" ".join(NODES)} {OWN}; do
  answer=$( (: < $node) 2>&1 )
  echo "node $node ${{answer##*: }}"
done
"""


@contextlib.contextmanager
def shown(cgroups: str = "v1") -> Iterator[list[str]]:
    """The words to put before a command that is to see the nodes. `cgroups`: v1 hides version 2, as crun starts nothing
    where `both` are mounted."""
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _SCRIPT, "sh", cgroups]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            yield ["nsenter", "--mount", "--target", str(process.pid)]
        finally:
            process.kill()


def usable(output: str) -> set[str]:
    """The nodes that the container may open, from the output of PROBE. Fails if PROBE did not run to its end."""
    lines = [line.strip().split(" ", 2) for line in output.splitlines() if line.startswith("node ")]
    found = {node: answer for _, node, answer in lines}
    assert set(found) == {*NODES, OWN}, output
    assert set(found.values()) <= {"No such file", "Operation not permitted", "No such device or address"}, output
    return {node for node, answer in found.items() if answer == "No such device or address"}
