"""Hostile images: gpushare/inject/view.py reads no more of them than it needs, and never for long."""

import os
import stat
from pathlib import Path

import pytest

from gpushare.errors import RefusedError
from gpushare.inject import view
from gpushare.inject.view import View

LINKS = 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs"
    (path / "etc").mkdir(parents=True)
    (path / "usr").mkdir()
    return path


def seen(tmp_path: Path, *mounts) -> View:
    return View({"mounts": list(mounts)}, tmp_path)


def test_links_as_long_and_many_as_the_kernel_takes(tmp_path, root):
    """Each link is 4 KiB of steps to and fro, and leads to the next one: together more steps than any honest image
    needs."""
    for number in range(LINKS):
        (root / f"l{number}").symlink_to("/usr/.." * 570 + f"/l{number + 1}")
    looked = seen(tmp_path)
    with pytest.raises(RefusedError, match="steps"):
        for _ in range(100):
            looked.resolve("/l0")


@pytest.mark.promise("image-delays-own-start")
def test_a_directory_of_very_many_names(tmp_path, root, monkeypatch):
    monkeypatch.setattr(view, "ENTRIES_MAX", 50)
    for number in range(51):
        (root / f"usr/{number}").touch()
    with pytest.raises(RefusedError, match="more than 50 files"):
        seen(tmp_path).names("/usr", "")


def test_a_path_deeper_than_there_are_descriptors(tmp_path, root):
    with pytest.raises(RefusedError, match="deeper than"):
        seen(tmp_path).resolve("/a" * 300)
    assert seen(tmp_path).resolve("/usr" + "/x/.." * 300).container == "/usr"


def test_nothing_stays_open(tmp_path, root):
    (root / "loop").symlink_to("loop")
    before = set(os.listdir("/proc/self/fd"))
    looked = seen(tmp_path)
    looked.resolve("/loop/usr/../etc")
    looked.names("/usr", "")
    looked.read("/etc/none", 10)
    with pytest.raises(RefusedError):
        looked.resolve("/a" * 300)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.promise("no-path-leads-out")
def test_a_fifo_is_not_read(tmp_path, root):
    fifo = root / "etc/ld.so.preload"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(held, b"/from/the/fifo.so\n")
        assert seen(tmp_path).read("/etc/ld.so.preload", 4096) == b""
        assert os.read(held, 100) == b"/from/the/fifo.so\n"
    finally:
        os.close(held)


@pytest.mark.promise("no-path-leads-out")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_device_is_not_opened(tmp_path, root):
    """Opening a device, such as a console or a watchdog, can have effects. Here it is /dev/zero, which would yield
    zeros."""
    os.mknod(root / "etc/ld.so.preload", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    looked = seen(tmp_path)
    assert looked.resolve("/etc/ld.so.preload").exists()
    assert looked.read("/etc/ld.so.preload", 4096) == b""


@pytest.mark.promise("no-path-leads-out")
def test_a_directory_that_becomes_a_link_out_meanwhile(tmp_path, root, monkeypatch):
    """The image is changed just before a file is opened. No component is checked first and opened later."""
    host = tmp_path / "host"
    host.mkdir()
    (host / "ld.so.preload").write_text("/of/the/host.so\n")
    opened = os.open

    def change_first(path, *arguments, **options):
        if path == "ld.so.preload" and (root / "etc").is_dir():
            (root / "etc").rename(root / "etc.old")
            (root / "etc").symlink_to(host)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", change_first)
    assert seen(tmp_path).read("/etc/ld.so.preload", 4096) == b""


def test_a_later_mount_hides_an_earlier_one(tmp_path, root):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own").touch()
    inner = {"destination": "/usr/lib", "type": "bind", "source": str(tmp_path / "a")}
    outer = {"destination": "/usr", "type": "bind", "source": str(tmp_path / "b")}
    assert seen(tmp_path, inner, outer).resolve("/usr/lib/own").host == tmp_path / "b/lib/own"
    found = seen(tmp_path, outer, inner).resolve("/usr/lib/own")
    assert (found.host, found.in_bind, found.is_file()) == (tmp_path / "a/own", True, True)
    hidden = {"destination": "/usr", "type": "tmpfs"}
    assert seen(tmp_path, inner, hidden).resolve("/usr/lib/own").host is None


def test_a_source_behind_a_link_of_the_host(tmp_path, root):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/own").touch()
    (tmp_path / "link").symlink_to("real")
    bind = {"destination": "/usr", "type": "bind", "source": "link"}
    assert seen(tmp_path, bind).resolve("/usr/own").exists()
