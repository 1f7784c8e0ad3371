"""How `gpushare doctor` inspects the machine: nothing keeps it waiting or misleads it."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.doctor import aside, machine, processes
from gpushare.doctor.containers import running, without_share
from gpushare.doctor.finding import read
from gpushare.paths import INTERPOSER

V1 = "30 25 0:26 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
V1_CPU = "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.promise("doctor-is-not-misled")
@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory", "device", "large", "absent"])
def test_nothing_but_a_file_is_read(tmp_path, kind):
    path = tmp_path / "it"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "symlink":
            path.symlink_to("/etc/passwd")
        case "directory":
            path.mkdir()
        case "device":
            os.mknod(path, 0o020600, os.makedev(1, 5))
        case "large":
            path.write_bytes(bytes(1001))
    assert read(path, 1000) is None


@pytest.mark.promise("doctor-is-not-misled")
def test_a_look_without_end_is_given_up():
    def look():
        yield 1
        yield {"two": 2}
        os.read(os.pipe()[0], 1)

    before = time.monotonic()
    assert aside.rows(look, 0.2) == ([1, {"two": 2}], False)
    assert time.monotonic() - before < 30


def test_a_look_that_fails_is_not_complete():
    assert aside.rows(lambda: (1 // number for number in (1, 0))) == ([1], False)
    assert aside.rows(list) == ([], True)


@pytest.mark.parametrize(
    ("mountinfo", "level", "message"),
    [
        (V2, "ok", "v2 at /sys/fs/cgroup/unified"),
        (V1 + V1_CPU + V2, "note", "hybrid"),
        (V1 + V1_CPU, "note", "no device program holds"),
        (V1_CPU, "missing", "neither"),
    ],
)
def test_versions_of_cgroups(mountinfo, level, message):
    found = machine.cgroups(mountinfo)
    assert found.level == level
    assert message in found.found


RUNC = '{"init_process_pid": PID, "config": {"labels": ["bundle=/b", "gpushare.DEV/memory=1GiB"], "mounts": MOUNTS}}'


def test_containers_without_their_share(tmp_path):
    (tmp_path / "crun/c").mkdir(parents=True)
    (tmp_path / "crun/c/status").write_text(f'{{"pid": {os.getpid()}, "bundle": "{tmp_path}/crun/c"}}')
    (tmp_path / "crun/c/config.json").write_text('{"annotations": {"gpushare.dev/time": "1%"}, "mounts": []}')
    shared = '[{"destination": "/run/gpushare/self", "source": "/run/gpushare/grants/g-1/self"}]'
    for name, pid, mounts in (("runc/r", os.getpid(), "[]"), ("docker/runtime-gpushare/moby/d", os.getpid(), shared),
                              ("containerd/runc/k8s.io/ended", 1 << 22, "[]")):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "state.json").write_text(RUNC.replace("PID", str(pid)).replace("MOUNTS", mounts))
    for name, text in (("odd", "[]"), ("broken", "{"), ("none", '{"init_process_pid": "x"}')):
        (tmp_path / "runc" / name).mkdir()
        (tmp_path / "runc" / name / "state.json").write_text(text)
    (tmp_path / "runc/link").symlink_to("/")
    os.mkfifo(tmp_path / "runc/odd/status")
    assert {one.id for one in running(tmp_path)} == {"c", "r", "d"}
    assert {one.what for one in without_share(None, tmp_path)} == {"container c", "container r"}
    found = {one.what: one for one in without_share([{"id": "g-2"}], tmp_path)}
    assert set(found) == {"container c", "container r", "container d"}
    assert "asked for a share by annotation and runs without one" in found["container r"].found
    assert "g-1, which has ended" in found["container d"].found
    assert "container d" not in {one.what for one in without_share([{"id": "g-1"}], tmp_path)}


def test_the_interposer_under_the_drivers_name_is_no_driver():
    line = "7f3594570000-7f3594589000 r-xp 00000000 fe:00 {} {:>30}/usr/lib/libcuda.so.1{}\n"
    own = INTERPOSER.stat().st_ino
    assert not processes.has_driver(line.format(own, "", "").encode())
    assert processes.has_driver(line.format(own + 1, "", "").encode())
    assert processes.has_driver((line.format(own, "", "") + line.format(7, "", " (deleted)")).encode())
    assert not processes.has_driver(b"7f35-7f36 r-xp 0 fe:00 7   /usr/lib/libcudart.so.12\n")


@pytest.mark.parametrize(
    ("cgroups", "path"),
    [
        ("9:name=systemd:/x/long\n6:freezer:/\n0::/g\n", "/g"),
        ("9:name=systemd:/x/long\n6:freezer:/f\n0::/\n", "/f"),
        ("5:devices,pids:/d\n", "/d"),
        ("0::/\n", "/"),
        ("", "/"),
    ],
)
def test_a_processs_own_cgroup(cgroups, path):
    assert processes.cgroup_of(cgroups) == path


def test_a_process_that_does_not_see_its_grant(tmp_path):
    """As under `ip netns exec`, whose mounts are older than the grant's."""
    (tmp_path / "limits").touch()
    there, gone = (
        subprocess.Popen(["sleep", "infinity"], env={"GPUSHARE_GRANT_DIR": str(path)})
        for path in (tmp_path, tmp_path / "none")
    )
    try:
        until(lambda: all(Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n" for one in (there, gone)), "they run")
        seen, hang = processes.look([there.pid, gone.pid])
        assert (hang, [seen[one.pid].is_blind for one in (there, gone)]) == ([], [False, True])
    finally:
        for one in (there, gone):
            one.kill()
            one.wait()
