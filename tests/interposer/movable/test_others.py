"""Memory stays where something may use it that nobody sees: another device that was given it, or a library that speaks
with the driver past its exported functions."""

import shutil
import subprocess
from pathlib import Path

import pytest
from pages.lending import Lender
from run.interposed import Interpose, Interposed
from run.waiting import until

from gpushare._native import lib

MIB = 1 << 20


@pytest.fixture
def worker(lender: Lender, interpose: Interpose) -> Interposed:
    made = interpose(lender)
    made.do(f"a = ok(d.cuMemAlloc({3 * MIB}))")
    return made


def moves(lender: Lender) -> bool:
    how = lender.suspend()
    assert lender.resume() == lib.GS_MOVED
    assert how in (lib.GS_MOVED, lib.GS_MOVE_UNSEEN)
    return how == lib.GS_MOVED


def map_library(worker: Interposed, directory: Path) -> None:
    """Maps a file that has the name of one with private tables."""
    shutil.copy(shutil.which("true") or "/bin/true", directory / "libnvoptix.so.1")
    worker.do(f"""
        import mmap
        file = open({str(directory / "libnvoptix.so.1")!r}, "rb")
        mapped = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
        file.close()
    """)


def test_a_library_with_private_tables(lender: Lender, worker: Interposed, tmp_path: Path) -> None:
    assert moves(lender)
    map_library(worker, tmp_path)
    assert not moves(lender)
    worker.do("mapped.close()")
    assert moves(lender)


def test_what_they_may_change_is_not_copied_ahead(
    lender: Lender, worker: Interposed, interpose: Interpose, tmp_path: Path
) -> None:
    """Once they have gone, the copy would be taken for a current one."""
    map_library(worker, tmp_path)
    beside = interpose(lender)
    beside.do(f"a = ok(d.cuMemAlloc({3 * MIB}))")
    lender.want(lib.GS_PREPARED)
    until(lambda: lender.slot(1).clean_bytes == 4 * MIB, "a process without them has a copy")
    assert lender.slot(0).clean_bytes == 0


def test_what_cannot_be_looked_at_may_be_there(lender: Lender, worker: Interposed, tmp_path: Path) -> None:
    """The process is out of descriptors, and needs none to give up what is copied ahead."""
    lender.want(lib.GS_PREPARED)
    until(lambda: lender.slot().clean_bytes == 4 * MIB, "it is copied ahead")
    map_library(worker, tmp_path)
    worker.do("import resource; before = resource.getrlimit(resource.RLIMIT_NOFILE)")
    worker.do("resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))")
    assert not moves(lender)


@pytest.mark.parametrize("name", ["infiniband/uverbs0", "gdrdrv", "nvidia-fs0"])
def test_a_device_that_may_have_the_memory(lender: Lender, worker: Interposed, name: str) -> None:
    """A file of that name in another namespace of mounts, which the program opens through /proc."""
    script = f"mount -t tmpfs tmpfs /dev && mkdir -p $(dirname /dev/{name}) && : > /dev/{name} && echo made && read end"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdin and other.stdout and other.stdout.readline() == "made\n"
        worker.do(f"file = open('/proc/{other.pid}/root/dev/{name}')")
        assert worker.get("__import__('os').readlink(f'/proc/self/fd/{file.fileno()}')") == f"/dev/{name}"
        assert not moves(lender)
        worker.do("file.close()")
        assert moves(lender)
        other.stdin.write("\n")
