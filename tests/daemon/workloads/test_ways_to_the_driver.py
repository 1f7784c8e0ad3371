"""Plain programs reach the driver in their share whatever they do to their environment, or are told why they do not."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine.members import NOBODY, open_to_members, opened_to_members
from run.running import SPIN, Running, copied_driver, start
from run.waiting import until

from gpushare._native import ffi, lib
from gpushare.binding import wire
from gpushare.paths import LIB_DIR, PROCESS_SELF, SIM_LIB_DIR
from gpushare.processes import helper

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon has to make cgroups, and root becomes others")

# Opens a library, and prints what cuInit answers and the GiB of memory that device 0 shows: 1 in the share.
PROBE = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
device, total = ctypes.c_int(), ctypes.c_size_t()
code = cuda.cuInit(0)
if code == 0:
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
print(code, total.value >> 30)
"""
OTHER = "libdl.so.2"  # preloaded in place of ours
DROPPED = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
SHARE = (PROCESS_SELF, str(LIB_DIR))  # what a sandbox has to have of root's share
NO_DEVICE, SYSTEM_NOT_READY = 100, 802


@pytest.fixture
def probe(public) -> str:
    """A command line, to be completed by a library, that any user may run."""
    file = public.state_dir / "probe.py"
    file.write_text(PROBE)
    file.chmod(0o644)
    return f"/usr/bin/python3 {file}"


def shell(daemon, script: str) -> subprocess.CompletedProcess[str]:
    return daemon.cli("run", "--memory", "1GiB", "--time", "25%", "--", "sh", "-c", script)


# `gpushare ARGUMENTS` as an ordinary user, after all imports: only root may be able to read the interpreter.
USERS_RUN = f"""
import os, sys
from gpushare import client
from gpushare.client import transport
from gpushare.cli import main
from gpushare.cli.grants import run
from gpushare.inject import process
main.build_parser().parse_args(sys.argv[1:])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(main.main(sys.argv[1:]))
"""


def as_user(daemon, script: str) -> subprocess.CompletedProcess[str]:
    """As `shell`, by an ordinary user."""
    command = [sys.executable, "-c", USERS_RUN, "run", "--memory", "1GiB", "--time", "25%", "--", "sh", "-c", script]
    with opened_to_members(daemon.layout.socket):
        return subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60, check=False)


def in_turn(probe: str, ways: dict[str, str]) -> str:
    return "\n".join(f"echo '{name}:' $({way.format(probe)})" for name, way in ways.items())


BY_NAME = {
    "nothing changed": "{} libcuda.so.1",
    "preload replaced": f"LD_PRELOAD={OTHER} {{}} libcuda.so.1",
    "preload unset, by timeout": "env -u LD_PRELOAD timeout 20 {} libcuda.so.1",
    "the name without a version": f"LD_PRELOAD={OTHER} {{}} libcuda.so",
}
ROOTS = {
    **BY_NAME,
    "preload and library path replaced": f"LD_PRELOAD={OTHER} LD_LIBRARY_PATH={SIM_LIB_DIR} {{}} libcuda.so.1",
    "no environment": f"env -i {{}} {SIM_LIB_DIR}/libcuda.so.1",
    "by its path": f"{{}} {SIM_LIB_DIR}/libcuda.so.1",
    "another user": f"{DROPPED} {{}} libcuda.so.1",
    "another user, preload replaced": f"LD_PRELOAD={OTHER} {DROPPED} {{}} libcuda.so.1",
    "another user, no environment": f"env -i {DROPPED} {{}} {SIM_LIB_DIR}/libcuda.so.1",
    "a mask that others cannot pass": f"umask 077; {DROPPED} {{}} libcuda.so.1",
}


@pytest.mark.promise("root-command-stays")
def test_roots_programs_are_in_their_share_whatever_they_change(public, probe):
    done = shell(public, in_turn(probe, ROOTS))
    assert done.stdout.splitlines() == [f"{name}: 0 1" for name in ROOTS], done.stderr
    assert done.stderr == ""


def test_users_programs_are_in_their_share_without_the_preload(public, probe):
    done = as_user(public, in_turn(probe, BY_NAME))
    assert done.stdout.splitlines() == [f"{name}: 0 1" for name in BY_NAME], done.stderr
    assert done.stderr == ""


def test_root_that_may_not_mount_has_its_environment(public, probe):
    """As root in a container: it is like any other user, and is told what it lacks once it has become one."""
    run = public.run("1GiB", "25%", "sh", "-c", f"{probe} libcuda.so.1; {DROPPED} {probe} libcuda.so.1")
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *run]
    done = subprocess.run(command, env=public.env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "1", str(SYSTEM_NOT_READY), "0"], done.stderr
    assert "GPUSHARE_GRANT_DIR is not here (Permission denied)" in done.stderr


def test_a_run_in_a_run_has_the_inner_share(public, probe):
    inner = f"{sys.executable} -m gpushare run --memory 2GiB --time 25% -- env -i {probe} {SIM_LIB_DIR}/libcuda.so.1"
    done = shell(public, f"{inner}; {probe} libcuda.so.1")
    assert done.stdout.split() == ["0", "2", "0", "1"], done.stderr


def test_a_users_run_in_roots_has_the_inner_share(public, probe):
    code = USERS_RUN.replace("'", "'\\''")
    open_to_members(public.layout.socket)
    inner = f"{sys.executable} -c '{code}' run --memory 2GiB --time 25% -- {probe} libcuda.so.1"
    done = shell(public, inner)
    if " shared:" in Path("/proc/self/mountinfo").read_text():
        assert done.stdout.split() == ["0", "2"], done.stderr
    else:  # the inner grant's files are not in the namespace
        assert (done.stdout.split(), "refused this process" in done.stderr) == ([str(SYSTEM_NOT_READY), "0"], True)


@pytest.mark.promise("root-command-stays")
def test_nothing_of_the_namespace_is_seen_outside(public):
    done = shell(
        public, f"ls {PROCESS_SELF}; readlink /proc/self/ns/mnt; touch {PROCESS_SELF}/limits || echo read-only"
    )
    listed, reply = done.stdout.split(), done.stderr
    assert {"limits", "usage", "grant.sock", "driver", "sim"} < set(listed)
    assert listed[-1] == "read-only", reply
    assert str(Path("/proc/self/ns/mnt").readlink()) not in listed
    assert not os.listdir(PROCESS_SELF)
    assert not any(str(SIM_LIB_DIR) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


READ_ONLY = "mount -o remount,bind,ro {0}/usage && touch {0}/usage 2>/dev/null || echo read-only; "


def test_a_sandbox_where_nothing_can_be_written(public, probe):
    """As bwrap --ro-bind / / makes: the daemon passes the page."""
    script = f"unshare --mount sh -c '{READ_ONLY.format(PROCESS_SELF)}{probe} libcuda.so.1'"
    assert shell(public, script).stdout.split() == ["read-only", "0", "1"]


@pytest.mark.promise("page-to-own-processes")
def test_the_page_is_passed_to_the_grants_processes_only(public):
    _, grant = public.join()
    message = bytes(ffi.buffer(ffi.new("struct gs_join_request *", [lib.GS_PASS_MAGIC, wire.VERSION, wire.NO_SLOT, 0])))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(10)
        asking.connect(str(public.layout.grants / grant / "self" / "grant.sock"))
        asking.send(message)
        answer, descriptors, _, _ = socket.recv_fds(asking, 256, 1)
    assert ffi.from_buffer("struct gs_join_reply *", answer).error == lib.GS_JOIN_REFUSED
    assert descriptors == []


def test_a_users_sandbox_where_root_is_nobody(public, probe):
    """A user namespace, in which the grant's directory does not seem to be root's."""
    probed = as_user(public, f"stat -c %u $GPUSHARE_GRANT_DIR; unshare --user --map-current-user {probe} libcuda.so.1")
    if "unshare failed" in probed.stderr:
        pytest.skip("users may not make user namespaces here")
    assert probed.stdout.split() == ["0", "0", "1"], probed.stderr


@pytest.mark.parametrize("mapping", ["", "--map-user=1000 --map-group=1000", "--map-root-user"])
def test_roots_sandbox_with_users_of_its_own(public, probe, mapping):
    done = shell(public, f"unshare --user {mapping} {probe} libcuda.so.1")
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_a_sandbox_that_hides_run_reports_it(public, probe):
    done = shell(public, f"unshare --mount sh -c 'mount -t tmpfs none /run && exec {probe} libcuda.so.1'")
    assert done.stdout.split() == [str(SYSTEM_NOT_READY), "0"]
    assert f"is gpushare itself; in root's sandbox --bind {PROCESS_SELF}\n" in done.stderr


def test_a_sandbox_that_denies_the_devices_nodes_reports_it(public, probe):
    """As bwrap --ro-bind / / without --dev-bind. A program that wants no device is told nothing."""
    looks = f"{probe} libcuda.so.1; CUDA_VISIBLE_DEVICES= {probe} libcuda.so.1"
    done = shell(public, f"unshare --mount sh -c 'mount -o remount,bind,nodev /dev; {looks}'")
    assert done.stdout.split() == [str(NO_DEVICE), "0"] * 2
    assert done.stderr.count("--dev-bind /dev /dev") == done.stderr.count("\n") == 1


def hidden(daemon, command: str) -> str:
    """A command where the share's files are hidden."""
    covers = (f"mount -t tmpfs none {path}" for path in (PROCESS_SELF, daemon.layout.grants))
    return f"unshare --mount sh -c '{' && '.join(covers)} && exec {command}'"


def test_a_sandbox_that_has_what_it_is_advised_to_bind(public, probe):
    """A root with the system's directories, and the two of the share."""
    root = public.state_dir / "root"
    script = [
        f"mkdir -p {root}/lib64 && mount -t tmpfs none {root}",
        *(f"mkdir -p {root}{path} && mount --rbind {path} {root}{path}" for path in ("/usr", "/dev", "/proc", *SHARE)),
        *(f"ln -s usr/{name} {root}/{name}" for name in ("lib", "lib64", "bin")),
        f"mkdir -p {root}{public.state_dir} && cp {public.state_dir}/probe.py {root}{public.state_dir}",
        f"umount {root}/dev/shm 2>/dev/null; exec chroot {root} {probe} libcuda.so.1",
    ]
    done = shell(public, f"unshare --mount sh -c '{' && '.join(script)}'")
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_a_sandbox_that_hides_the_grant_reports_it(public, probe):
    done = shell(public, hidden(public, f"{probe} libcuda.so.1"))
    assert done.stdout.split() == [str(SYSTEM_NOT_READY), "0"]
    assert "GPUSHARE_GRANT_DIR is not here" in done.stderr
    assert "--bind" in done.stderr


@contextlib.contextmanager
def evade(daemon, script: str) -> Iterator[Running]:
    child = start(daemon.run("1GiB", "25%", "sh", "-c", script), daemon.env, forked=False)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def past(daemon) -> str:
    driver = copied_driver(daemon.state_dir).parent
    return f"env -i LD_LIBRARY_PATH={driver} GPUSHARE_SIM_DIR={daemon.layout.sim} {SPIN} --alloc 1MiB --seconds 600"


def test_one_that_is_stopped_is_notified_why_on_its_standard_error(public):
    with evade(public, f"exec {past(public)}") as child:
        reply = child.stderr.readline()
        [found] = public.findings(pid=child.pid, act="frozen")
    notified = (
        f"gpushare: process {child.pid} uses a device past its share {found['grant']}, and is stopped until it ends"
    )
    assert reply.startswith(notified)
    assert "LD_LIBRARY_PATH" in reply


def test_one_in_a_sandbox_is_notified_what_to_bind(public):
    with evade(public, f"exec {hidden(public, past(public))}") as child:
        reply = child.stderr.readline()
        assert public.findings(pid=child.pid, act="frozen")
    for part in ("hides its share", PROCESS_SELF, "bwrap --bind"):
        assert part in reply


def test_one_that_is_to_be_killed_is_notified_when(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('simulate = "1x16GiB"\n[audit]\nevader = "kill"\ngrace_seconds = 3\n')
    daemon = make_daemon("--config", str(config)).start()
    with evade(daemon, f"exec {past(daemon)}") as child:
        assert "is killed after 3 s" in child.stderr.readline()
    until(lambda: not daemon.client.grants(), "the grant ends")
    daemon.findings()


def tell(process: subprocess.Popen[bytes]) -> int:
    """The status of the helper that tells a process a text."""
    pidfd = os.pidfd_open(process.pid)
    try:
        command = helper.command("teller", "a text", "hidden", "/")
        return subprocess.run(command, stdin=pidfd, capture_output=True, timeout=20, check=False).returncode
    finally:
        os.close(pidfd)


@pytest.mark.promise("stop-line-harmless")
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND])
def test_a_process_is_notified_only_where_it_can_write_itself(tmp_path, flags):
    """The helper is root's, and may open any file; what it writes to is what the process has opened, as it has."""
    file = tmp_path / "file"
    file.write_text("before\n")
    opened = os.open(file, flags)
    with subprocess.Popen(["sleep", "60"], stderr=opened) as process:
        os.close(opened)
        status = tell(process)
        process.kill()
    notified = flags != os.O_RDONLY
    assert (status == 0) == notified
    assert file.read_text() == ("before\ngpushare: a text\n" if notified else "before\n")


@pytest.mark.promise("stop-line-harmless")
def test_a_full_pipe_keeps_the_helper_for_a_moment_only():
    read, write = os.pipe()
    os.set_blocking(write, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(write, bytes(1 << 16))
    os.set_blocking(write, True)
    with subprocess.Popen(["sleep", "60"], stderr=write) as process:
        assert tell(process) != 0
        process.kill()
    os.close(read)
    os.close(write)
