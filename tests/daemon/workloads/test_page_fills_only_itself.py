"""A tenant that tries to fill the memory that holds all grants' pages fills only its own file system."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.binding.pages import USAGE_BYTES
from gpushare.inject import grantdir

MIB = 1 << 20

# Arguments: the page, and how to fill it. Runs as the tenant's process, which may die of it.
GROW = f"""
import mmap, os, sys
path, how = sys.argv[1:]
page = os.open(path, os.O_RDWR)
if how == "write":
    for _ in range(64):
        os.pwrite(page, bytes({MIB}), os.fstat(page).st_size)
elif how == "allocate":
    os.posix_fallocate(page, 0, 64 * {MIB})
elif how == "map":
    os.truncate(page, 64 * {MIB})
    memory = mmap.mmap(page, 64 * {MIB})
    for at in range(0, 64 * {MIB}, 4096):
        memory[at] = 1
elif how == "files":
    for number in range(100):
        os.close(os.open(f"{{os.path.dirname(path)}}/{{number}}", os.O_CREAT | os.O_WRONLY))
elif how == "attributes":
    for number in range(10000):
        os.setxattr(page, f"user.{{number}}", bytes(1000))
"""


def used(path):
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")


def joined(daemon):
    child, grant = daemon.join()
    own = grantdir.self_dir(daemon.layout, grant)
    assert os.path.ismount(own)
    return child, grant, own


@pytest.mark.promise("page-room-is-own")
@pytest.mark.parametrize("how", ["write", "allocate", "map", "files", "attributes"])
def test_a_page_does_not_grow_into_the_room_of_others(daemon, how):
    child, grant, own = joined(daemon)
    shared = used(daemon.layout.grants)
    grown = subprocess.run(
        [sys.executable, "-c", GROW, own / "usage", how], capture_output=True, text=True, check=False
    )
    assert grown.returncode != 0
    assert used(own) < 2 * USAGE_BYTES
    # with some slack: other processes may use the same tmpfs
    assert used(daemon.layout.grants) < shared + 32 * MIB
    other, second = daemon.join()
    assert daemon.client.grant(second)["processes"] == [other.pid]
    assert child.poll() is None
    child.stdin.write("end\n")
    until(lambda: grant not in {row["id"] for row in daemon.client.grants()}, "it ends as any other")
    assert not own.parent.exists()


def test_a_page_takes_memory_as_it_is_used(client):
    own = Path(client.create(memory="1GiB", time="10%")["dir"])
    assert (own / "usage").stat().st_size == USAGE_BYTES
    assert used(own) <= 4 * 4096  # the first 4096-byte pages of the two files


def test_the_room_of_a_grant_is_exact(daemon):
    _, _, own = joined(daemon)
    found = os.statvfs(own)
    assert found.f_blocks * found.f_frsize < USAGE_BYTES + 8 * 4096
    assert found.f_files < 64
    flags = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
    assert found.f_flag & flags == flags
    page = os.open(own / "usage", os.O_RDWR)
    try:
        os.posix_fallocate(page, 0, USAGE_BYTES)  # the whole file fits
        with pytest.raises(OSError, match="No space") as refused:
            os.posix_fallocate(page, 0, USAGE_BYTES + MIB)
        assert refused.value.errno == errno.ENOSPC
    finally:
        os.close(page)


def test_the_room_outlives_the_daemon_and_ends_with_the_grant(fresh):
    child, grant, own = joined(fresh)
    number = own.stat().st_dev
    fresh.kill()
    stray = fresh.layout.grants / "g-stray"
    (stray / "self").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "x", stray / "self"], check=True)
    fresh.start()
    assert not stray.exists()
    assert own.stat().st_dev == number
    assert fresh.client.grant(grant)["processes"] == [child.pid]
    fresh.client.release(grant)
    until(lambda: fresh.grant_dirs() == set(), "nothing is left")
    assert str(fresh.layout.grants) not in Path("/proc/self/mountinfo").read_text()
