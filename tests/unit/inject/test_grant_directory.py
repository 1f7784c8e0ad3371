import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.inject import grantdir, grantfiles, mounts, names, process
from gpushare.inject.node import Node
from gpushare.paths import INTERPOSERS, SIM_RUNTIMES


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "sim", lib_dir=tmp_path / "lib", sim_lib_dir=tmp_path / "lib/sim")


@pytest.fixture
def real(tmp_path: Path) -> Node:
    return Node(None, (tmp_path / "libcuda.so.1", tmp_path / "libnvidia-ml.so.1"))


@pytest.fixture(autouse=True)
def clean(tmp_layout):
    yield
    for path in tmp_layout.grants.glob("*"):
        grantfiles.remove(tmp_layout, path.name)
    if tmp_layout.grants.exists():
        tmp_layout.grants.rmdir()


@pytest.fixture(params=["its own file system", "one that it shares"])
def file_system(request, tmp_layout, monkeypatch):
    """Whether the grant's self/ has its own file system."""
    if request.param != "its own file system":
        monkeypatch.setattr(mounts, "possible", lambda place: False)
    elif not mounts.possible(tmp_layout.grants):
        pytest.skip("needs to mount")
    return request.param


PAGES = grantfiles.Pages(b"limits" * 100, b"usage", 1 << 20)


def create(layout, kind, node, user=None):
    return grantfiles.create(layout, "g-1", kind, user or (os.geteuid(), os.getgid()), node, PAGES)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_container(tmp_layout, node, umask, file_system):
    before = os.umask(umask)
    try:
        own = create(tmp_layout, "container", node)
    finally:
        os.umask(before)
    assert (mode(tmp_layout.grants), mode(own.parent), mode(own)) == (0o711, 0o700, 0o755)
    assert sorted(entry.name for entry in own.iterdir()) == ["compat", "driver", "limits", "sim", "usage"]
    directories = [own / name for name in ("compat", "driver", "sim")]
    assert all(entry.is_dir() and not entry.is_symlink() and mode(entry) == 0o755 for entry in directories)
    assert own.is_mount() == (file_system == "its own file system")
    assert (own / "limits").read_bytes() == PAGES.limits
    assert (own / "usage").read_bytes() == PAGES.usage.ljust(PAGES.usage_bytes, b"\0")
    assert (mode(own / "limits"), mode(own / "usage")) == (0o644, 0o666)
    assert ((own / "usage").stat().st_blocks >= 2 * 128) == (file_system != "its own file system"), "its ends have room"
    runtimes = [f"/run/gpushare/self/driver/{name}" for name in SIM_RUNTIMES]
    assert grantdir.preload_file(tmp_layout, "g-1").read_text().split() == [*grantdir.INTERPOSERS, *runtimes]
    assert mode(grantdir.preload_file(tmp_layout, "g-1")) == 0o644


def test_container_on_a_real_device(tmp_layout, real):
    own = create(tmp_layout, "container", real)
    assert sorted(entry.name for entry in own.iterdir()) == ["compat", "driver", "limits", "usage"]
    assert sorted(entry.name for entry in (own / "driver").iterdir()) == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert grantdir.preload_file(tmp_layout, "g-1").read_text().split() == list(grantdir.INTERPOSERS)


def test_process(tmp_layout, node, file_system):
    own = create(tmp_layout, "process", node, (23456, 12345) if os.geteuid() == 0 else None)
    assert (mode(own.parent), mode(own)) == (0o711, 0o750)
    if os.geteuid() == 0:
        assert (own.stat().st_uid, own.stat().st_gid) == (0, 12345)
        assert ((own / "usage").stat().st_uid, (own / "usage").stat().st_gid) == (23456, 12345)
    assert (mode(own / "limits"), mode(own / "usage")) == (0o644, 0o600)
    assert (own / "driver").readlink() == node.sim_lib_dir
    assert (own / "sim").readlink() == node.sim_dir


def test_process_on_a_real_device(tmp_layout, real):
    own = create(tmp_layout, "process", real)
    assert (own / "driver/libcuda.so.1").readlink() == real.driver_files[0]


@pytest.mark.parametrize("kind", ["process", "container"])
@pytest.mark.parametrize("more", [False, True])
def test_remove_is_idempotent_and_follows_nothing(tmp_layout, node, tmp_path, file_system, kind, more):
    node.sim_lib_dir.mkdir(parents=True)
    (node.sim_lib_dir / "libcuda.so.1").touch()
    own = create(tmp_layout, kind, node)
    if more:
        (own / "link").symlink_to(node.sim_lib_dir)
        (own.parent / "ld.so.cache").touch()
    grantfiles.remove(tmp_layout, "g-1")
    grantfiles.remove(tmp_layout, "g-1")
    assert not grantdir.grant_dir(tmp_layout, "g-1").exists()
    assert (node.sim_lib_dir / "libcuda.so.1").exists()


def test_what_cannot_be_made_is_reported(tmp_layout, node):
    own = create(tmp_layout, "container", node)
    with pytest.raises(FileExistsError, match=str(own.parent)):
        create(tmp_layout, "container", node)


@pytest.mark.promise("name-in-shm")
@pytest.mark.parametrize("what", ["link", "file", "empty", "full"])
def test_a_parent_of_somebody_else_is_moved_away(tmp_layout, node, tmp_path, what):
    """The parent may be in /dev/shm, where any user can first create something with its name."""
    elsewhere = tmp_path / "theirs"
    elsewhere.mkdir()
    parent = tmp_layout.grants
    parent.parent.mkdir(parents=True, exist_ok=True)
    if what == "link":
        parent.symlink_to(elsewhere)
    elif what == "file":
        parent.touch()
    else:
        parent.mkdir()
        if what == "full":
            (parent / "kept").touch()
        if os.geteuid() != 0:
            pytest.skip("needs root to make what another user owns")
        os.chown(parent, 1000, 1000)
    try:
        create(tmp_layout, "container", node)
        found = os.lstat(parent)
        assert stat.S_ISDIR(found.st_mode)
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o711)
        assert list(elsewhere.iterdir()) == []
        left = list(parent.parent.glob(f"{parent.name}.*"))
        assert [one.name for path in left for one in path.iterdir()] == (["kept"] if what == "full" else [])
        assert bool(left) == (what == "full")
    finally:
        for path in parent.parent.glob(f"{parent.name}*"):
            mounts.unmount(path / "g-1/self")
            shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make what another user owns")
def test_what_is_moved_away_may_go_at_once(tmp_layout, monkeypatch):
    parent, exchange, calls = tmp_layout.grants, mounts.exchange, []
    parent.mkdir(parents=True)
    os.chown(parent, 1000, 1000)

    def taken_away(one, other):
        calls.append(other)
        assert len(calls) == 1
        exchange(one, other)
        one.rmdir()

    monkeypatch.setattr(mounts, "exchange", taken_away)
    try:
        grantfiles.prepare(tmp_layout)
        assert (os.lstat(parent).st_uid, calls) == (0, [parent])
    finally:
        parent.rmdir()


# Ends at EOF on standard input, whatever happens to the test.
AGAIN = """
import os, select, sys
os.setuid(1000)
while not select.select([0], [], [], 0)[0]:
    for change in (os.mkdir, os.rmdir):
        try:
            change(sys.argv[1])
        except OSError:
            pass
"""


@pytest.mark.promise("name-in-shm")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory that belongs to root")
def test_it_is_made_beside_a_user_who_makes_it_again_and_again(tmp_layout):
    parent = tmp_layout.grants
    parent.parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", AGAIN, parent], stdin=subprocess.PIPE) as other:
        try:
            for _ in range(200):
                grantfiles.prepare(tmp_layout)
                assert os.lstat(parent).st_uid == 0
                parent.rmdir()
        finally:
            other.kill()
    for path in parent.parent.glob(f"{parent.name}*"):
        path.rmdir()


def test_environment_keeps_the_users_preload(tmp_layout):
    added = process.environment(tmp_layout, "g-1", Node())
    assert added["GPUSHARE_GRANT_DIR"] == str(grantdir.self_dir(tmp_layout, "g-1"))
    merged = process.merge({"LD_PRELOAD": "/a.so", "HOME": "/h"}, added)
    assert merged["LD_PRELOAD"] == "/a.so:" + added["LD_PRELOAD"], "it may wrap the driver: ours is the next behind it"
    assert merged["HOME"] == "/h"
    assert process.merge({}, added)["LD_PRELOAD"] == added["LD_PRELOAD"]
    assert process.merge(merged, added) == merged, "a run in a run"
    for theirs in ("/x/libcuda.so.1 /a.so:", f"{added['LD_PRELOAD']} /a.so:/x/libcuda.so.1"):
        again = process.merge({"LD_PRELOAD": theirs}, added)["LD_PRELOAD"]
        assert again == f"/a.so:{added['LD_PRELOAD']}:/x/libcuda.so.1", "the driver itself never comes before us"


def test_programs_find_the_simulated_libraries(tmp_layout, tmp_path):
    """With a grant they come after gpushare's own, without one alone. With real devices there are none."""
    node = Node(sim_dir=tmp_path, sim_lib_dir=Path("/sim"))
    shared, bare = process.environment(tmp_layout, "g-1", node), process.bare(tmp_path, Path("/sim"))
    runtimes = bare["LD_PRELOAD"].split(":")
    assert runtimes == [f"/sim/{name}" for name in SIM_RUNTIMES]
    assert shared["LD_PRELOAD"].split(":") == [*map(str, INTERPOSERS), *runtimes]
    assert (bare["GPUSHARE_SIM_DIR"], bare["LD_LIBRARY_PATH"]) == (str(tmp_path), "/sim")
    merged = process.merge({"LD_LIBRARY_PATH": "/a:/b"}, shared)
    assert merged["LD_LIBRARY_PATH"] == f"{tmp_layout.names}:/sim:/a:/b", "the interposer before the driver"
    assert process.merge({"PATH": "/a:/b"}, shared)["PATH"] == "/sim/bin:/a:/b", "nvidia-smi of these devices"
    assert process.merge(merged, shared) == merged, "a run in a run"
    real = process.environment(tmp_layout, "g-1", Node())
    assert real["LD_LIBRARY_PATH"] == str(tmp_layout.names)
    assert process.merge({"PATH": "/a"}, real)["PATH"] == "/a"


def test_the_drivers_names_lead_to_the_interposer(tmp_layout, tmp_path):
    """Also after an upgrade, which may move it. No name is missing meanwhile."""
    tmp_layout.names.parent.mkdir(parents=True)
    for lib_dir in (tmp_path / "old", tmp_path / "new"):
        for _ in range(2):
            names.make(tmp_layout, Node(lib_dir=lib_dir))
        links = {link.name: str(link.readlink()) for link in tmp_layout.names.iterdir()}
        cuda, nvml = f"{lib_dir}/libgpushare.so", f"{lib_dir}/libgpushare-ml.so"
        assert links == {
            "libcuda.so": cuda, "libcuda.so.1": cuda, "libnvidia-ml.so": nvml, "libnvidia-ml.so.1": nvml,
        }  # fmt: skip
    names.remove(tmp_layout)
    names.remove(tmp_layout)
    assert not tmp_layout.names.exists()


def test_no_room_for_a_probe_decides_nothing(tmp_path, monkeypatch):
    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    first, second = (tmp_path / name for name in ("first", "second"))
    for place in (first, second):
        place.mkdir()
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", no_room)
        assert not mounts.possible(first)
    assert mounts.possible(first) == mounts.possible(second)
    assert not list(first.iterdir())
