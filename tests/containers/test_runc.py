"""Containers under plain runc, with the wrapper and the hook, against a real daemon."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run import built
from run.waiting import until

from gpushare.demo.bundle import TENANT_PROGRAM
from gpushare.inject import grantdir
from gpushare.paths import CONTAINER_DRIVER, CONTAINER_NAMES, HOOK, SIM_RUNTIMES

pytestmark = pytest.mark.xdist_group("machine")

SHARE = {"memory": "1GiB", "time": "30%"}
PRELOADED = (*grantdir.INTERPOSERS, *(f"{CONTAINER_DRIVER}/{name}" for name in SIM_RUNTIMES))


def answer(result) -> str:
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.promise("own-limits")
def test_container_sees_its_share(runc):
    script = """
        cat /etc/ld.so.preload
        ls /run/gpushare/self
        touch /run/gpushare/self/x 2>/dev/null || echo self is read-only
        ( : >> /run/gpushare/self/limits ) 2>/dev/null || echo limits are read-only
        ( : >> /run/gpushare/self/usage ) && echo usage can be written
    """
    result = runc.run("/bin/sh", "-c", script, annotations=SHARE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:-1] == [
        *PRELOADED, "compat", "driver", "grant.sock", "limits", "sim", "usage",
        "self is read-only", "limits are read-only", "usage can be written",
    ]  # fmt: skip


@pytest.mark.promise("own-files-only")
def test_a_neighbours_grant_is_out_of_reach(runc, node):
    other = node.client.create(memory="1GiB", time=100)
    try:
        script = f"ls {node.layout.grants} {other['dir']}; find /run /dev /tmp /etc -name limits"
        result = runc.run("/bin/sh", "-c", script, annotations=SHARE)
        assert "No such file" in result.stderr
        assert result.stdout == "/run/gpushare/self/limits\n"
    finally:
        node.client.release(other["id"])


GROW = """
import os
page = os.open("/run/gpushare/self/usage", os.O_RDWR)
end = os.fstat(page).st_size
for what in (lambda: os.posix_fallocate(page, 0, end + (64 << 20)), lambda: os.pwrite(page, bytes(64 << 20), end)):
    try:
        print(what(), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
print(os.stat("/run/gpushare/self/usage").st_size - end < 4 << 20)
"""


@pytest.mark.promise("page-room-is-own")
def test_a_container_grows_its_page_into_nobody_elses_room(runc, node):
    result = runc.run("/usr/bin/python3", "-c", GROW, annotations=SHARE)
    assert result.returncode == 0, result.stderr
    allocated, written, small = result.stdout.splitlines()
    assert allocated == "No space left on device"
    assert int(written) < 4 << 20  # what its own page file may still grow
    assert small == "True"
    node.nothing_left()


LOOK = """
import ctypes, json, os, sys
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context, address, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
free, total, memory = ctypes.c_size_t(), ctypes.c_size_t(), (ctypes.c_uint64 * 3)()
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]) << 20)) == 0
print(flush=True)
sys.stdin.readline()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
count, rows = ctypes.c_uint(9), (ctypes.c_uint64 * 27)()
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), rows) == 0
seen = {rows[3 * i] & 0xFFFFFFFF: rows[3 * i + 1] for i in range(count.value)}
refused = nvml.nvmlDeviceSetPersistenceMode(handle, 0)
print(json.dumps([[total.value, free.value], list(memory), seen == {os.getpid(): memory[2]}, os.getpid(), refused]))
"""


def test_nvml_shows_the_container_itself_and_no_other(runc):
    """NVML shows pids of the container's own namespace; 16 MiB are the context."""
    processes = [runc.start("/usr/bin/python3", "-c", LOOK, size, annotations=SHARE) for size in ("100", "200")]
    for process in processes:
        assert process.stdout.readline() == "\n", process.stderr.read()
    for process, used in zip(processes, (116 << 20, 216 << 20), strict=True):
        out, errors = process.communicate("\n", timeout=30)
        assert process.returncode == 0, errors
        cuda, nvml, alone, pid, refused = json.loads(out)
        assert cuda == [1 << 30, (1 << 30) - used]
        assert nvml == [1 << 30, (1 << 30) - used, used]
        assert pid < 20
        assert alone
        assert refused == 4, "NVML_ERROR_NO_PERMISSION"


def test_memory_and_time_of_a_tenant(runc, node):
    process = runc.start(TENANT_PROGRAM, annotations={"memory": "1GiB", "time": "30%"})
    with process:
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready", ready

        def ask(command: str) -> dict:
            process.stdin.write(command + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert ask("memory")["total_bytes"] == 1 << 30
        assert ask("alloc 512MiB")["ok"]
        refused = ask("alloc 512MiB")
        assert (refused["ok"], refused["error"], refused["name"]) == (False, 2, "CUDA_ERROR_OUT_OF_MEMORY")
        ask("run 500000")
        grant = node.client.grant(runc.grant())
        until(lambda: node.client.grant(grant["id"])["devices"][0]["busy_ns"], "the daemon sees its work")
        assert ask("idle")["kernels"] > 0
        books = node.client.sim_stats()["devices"][0]["processes"]
        mine = next(process for process in books if process["pid"] == grant["pid"])
        assert mine["busy_ns"] > 0
        assert (512 << 20) < mine["peak_bytes"] <= 1 << 30
        process.stdin.write("quit\n")
        process.stdin.flush()
        assert process.wait(20) == 0


def test_a_program_that_brings_a_cuda_runtime(runc):
    """It links a shared libcudart, which only gpushare provides in the container."""

    def lend(config):
        bind = {"type": "bind", "options": ["rbind", "ro"]}
        config["mounts"].append({"destination": "/tmp/program", "source": str(built.program("cudart")), **bind})

    result = runc.run("/tmp/program", annotations=SHARE, change=lend)
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr


LINK = """
gcc -shared -o /tmp/made.so -x c /dev/null -Wl,--no-as-needed -L$TRITON_LIBCUDA_PATH -l:libcuda.so.1 || exit
exec python3 -c '
import ctypes
made, size = ctypes.CDLL("/tmp/made.so"), ctypes.c_size_t()
print(made.cuInit(0), made.cuDeviceTotalMem_v2(ctypes.byref(size), 0), size.value)'
"""


def test_what_triton_compiles_is_linked_with_the_driver_and_meets_the_interposer(runc):
    result = runc.run("/bin/sh", "-c", LINK, annotations=SHARE)
    assert (result.returncode, result.stdout) == (0, f"0 0 {1 << 30}\n"), result.stderr


FIND = """
import ctypes, ctypes.util, subprocess
lines = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
print(*(line.split()[-1] for line in lines if "libcuda.so.1" in line), ctypes.util.find_library("cuda"))
driver, size = ctypes.CDLL(ctypes.util.find_library("cuda")), ctypes.c_size_t()
print(driver.cuInit(0), driver.cuDeviceTotalMem_v2(ctypes.byref(size), 0), size.value)
"""


@pytest.mark.parametrize("cached", [True, False])
def test_the_loaders_cache_lists_the_interposer_as_the_driver(runc, cached):
    """Whether or not the image has a cache."""

    def cache(config):
        if cached:
            etc = runc.directory / runc.names[-1] / "rootfs/etc"
            subprocess.run(["/sbin/ldconfig", "-X", "-C", etc / "ld.so.cache"], check=True, capture_output=True)

    result = runc.run("/usr/bin/python3", "-c", FIND, annotations=SHARE, change=cache)
    expected = f"{CONTAINER_NAMES}/libcuda.so.1 libcuda.so.1\n0 0 {1 << 30}\n"
    assert (result.returncode, result.stdout) == (0, expected), result.stderr


def test_no_request_starts_without_a_daemon_and_sees_no_gpu(runc, node):
    node.kill()
    result = runc.run("/bin/sh", "-c", "ls /run /dev /etc; echo $LD_PRELOAD")
    assert result.returncode == 0, result.stderr
    assert "gpushare" not in result.stdout and "nvidia" not in result.stdout and "preload" not in result.stdout
    assert "hooks" not in runc.config()


@pytest.mark.promise("other-requests-are-reported")
def test_who_asks_in_nvidias_ways_gets_none_and_is_seen(runc, node):
    def attempts() -> list[dict]:
        return node.client.call("GET", "/v1/attempts")["attempts"]

    def change(config: dict) -> None:
        config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
        config["annotations"]["nvidia.com/gpu"] = "1"

    before = len(attempts())
    assert runc.run("/bin/sh", "-c", "! ls /dev | grep nvidia", change=change).returncode == 0
    until(lambda: len(attempts()) > before, "it is seen", 10)
    seen = attempts()[before]
    assert (seen["by"], seen["path"]) == (["environment", "annotation"], "wrapper")
    assert runc.names[-1] in seen["container"]
    by_annotation = sum("annotation" in one["by"] for one in attempts())
    assert f'gpushare_attempts_total{{by="annotation",path="wrapper"}} {by_annotation}' in node.client.text("/metrics")
    # A config that only mentions gpushare counts too; a container with a share is not an attempt.
    mentions = "X=gpushare.dev/"
    runc.run("/bin/true", change=lambda config: config["process"]["env"].extend([mentions, "NVIDIA_VISIBLE_DEVICES=0"]))
    runc.run("/bin/true", annotations=SHARE, change=change)
    until(lambda: len(attempts()) == before + 2, "the second is seen", 10)
    assert attempts()[-1]["by"] == ["environment"]


@pytest.mark.promise("other-requests-are-reported")
def test_who_asks_in_nvidias_ways_starts_while_the_daemon_hangs(runc, node):
    node.process.send_signal(signal.SIGSTOP)
    try:
        result = runc.run(
            "/bin/true", change=lambda config: config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
        )
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert result.returncode == 0, result.stderr


def test_request_without_a_daemon_does_not_start(runc, node, tmp_path):
    node.away()
    result = runc.run("/bin/sh", "-c", "echo started", annotations=SHARE)
    assert result.returncode != 0
    assert result.stdout == ""
    assert answer(result).startswith("gpushare: no daemon answers at")


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_daemon_that_is_restarted_is_waited_for(runc, node, end):
    getattr(node, end)()
    with runc.start("/bin/echo", "started", annotations=SHARE) as process:
        node.start()
        out, answer = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "started\n"), answer


def test_a_daemon_that_is_killed_again_and_again_stops_no_start(runc, node):
    """Whatever it has answered by then: it is asked again, once for each call."""
    for _ in range(3):
        with runc.start("/bin/echo", "started", annotations=SHARE) as process:
            node.kill()
            node.start()
            out, answer = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "started\n"), answer


@pytest.mark.promise("no-start-without-share")
@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"memory": "17GiB", "time": "30%"}, "17GiB"),
        ({"memory": "12 GiBs", "time": "30%"}, "12 GiBs"),
        ({"memory": "1GiB", "time": "140%"}, "140%"),
        ({"memory": "1GiB", "time": "NaN"}, "NaN"),
        ({"memory": "-3", "time": "30%"}, "-3"),
        ({"memory": "1GiB"}, "gpushare.dev/time is missing"),
        ({"memory": "1GiB", "time": "30%", "tenant": "nobody-knows"}, "nobody-knows"),
        ({"memory": "1GiB", "time": "30%", "device": "GPU-none"}, "GPU-none"),
        ({"memory": "1GiB", "time": "30%", "class": "royal"}, "royal"),
        ({"memory": "1GiB", "time": "30%", "prio": "1"}, "gpushare.dev/prio is unknown"),
        ({"grant": "g-000000000000"}, "g-000000000000"),
    ],
)
def test_refusal_stops_the_start_with_the_reason(runc, node, annotations, message):
    result = runc.run("/bin/sh", "-c", "echo started", annotations=annotations)
    assert result.returncode != 0
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and message in result.stderr, result.stderr


@pytest.mark.promise("request-read-one-way")
def test_an_annotation_in_capitals_starts_no_container_without_a_share(runc, node):
    result = runc.run(
        "/bin/echo", "started", change=lambda config: config["annotations"].update({"GpuShare.Dev/time": "1%"})
    )
    assert result.returncode != 0
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert "GpuShare.Dev/time is unknown" in result.stderr and "small letters" in result.stderr


def test_the_hooks_refusal_reaches_the_terminal(runc, node):
    """Two containers use one grant: the edit may accept the second one, but the hook never does."""
    grant = node.client.create(memory="1GiB", time=300)
    first = runc.start("/bin/cat", annotations={"grant": grant["id"]})
    with first:
        until(lambda: node.client.grant(grant["id"])["phase"] == "active", "the first one runs")
        second = runc.run("/bin/echo", "started", annotations={"grant": grant["id"]})
        assert second.returncode != 0 and second.stdout == ""
        assert grant["id"] in answer(second)
        first.stdin.close()
        assert first.wait(20) == 0


def test_containers_in_turn_and_at_once_in_a_grant_that_is_kept(runc, node):
    """As in a pod whose containers share a claim, and restart."""
    kept = node.client.create(memory="1GiB", time=300, keep=True)["id"]
    for text in ("started", "and again"):
        assert runc.run("/bin/echo", text, annotations={"grant": kept}).stdout == f"{text}\n"
        until(lambda: node.client.grant(kept)["phase"] == "bound", "it has ended", 20)
    looks = [runc.start("/usr/bin/python3", "-c", LOOK, "400", annotations={"grant": kept}) for _ in range(2)]
    for one in looks:
        assert one.stdout.readline() == "\n", one.stderr.read()
    for count, one in zip((2, 1), looks, strict=True):
        out, errors = one.communicate("\n", timeout=30)
        assert one.returncode == 0, errors
        assert json.loads(out)[0] == [1 << 30, (1 << 30) - count * (416 << 20)], "both hold memory of the one share"
        until(lambda count=count: len(node.client.grant(kept)["processes"]) == count - 1, "it is gone", 20)
    with runc.start("/bin/cat", annotations={"grant": kept}) as last:
        last.stdin.write("it runs\n")
        last.stdin.flush()
        assert last.stdout.readline() == "it runs\n"
        assert node.client.release(kept)["phase"] == "released"
        assert last.wait(20) == 128 + signal.SIGKILL


def test_config_edited_before_meets_the_hook(runc, node):
    """An already edited bundle, started directly by runc after the grant has ended: the hook refuses it."""
    command = runc.command("/bin/echo", "started", annotations=SHARE)
    where, runtime = runc.directory / runc.names[-1], runc.directory / "runtime"
    runtime.write_text(f'#!/bin/sh\ncp {where}/config.json {where}/edited.json\nexec runc "$@"\n')
    runtime.chmod(0o755)
    command.insert(1, f"--gpushare-runtime={runtime}")
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
    node.nothing_left()
    (where / "edited.json").rename(where / "config.json")
    plain = ["runc", *command[3:]]
    again = subprocess.run(plain, capture_output=True, text=True)
    assert again.returncode != 0 and again.stdout == ""


def hooks_running(socket: Path) -> list[int]:
    """Pids of running hooks that talk to this test's daemon."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"place" in words and os.fsencode(socket) in words and (entry / "exe").readlink() == HOOK:
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize("after_ms", [0, 1, 3, 10])
def test_killed_hook_stops_the_start_and_leaks_nothing(runc, node, after_ms):
    command = runc.command("/bin/echo", "started", annotations=SHARE)
    killed = []

    def kill() -> None:
        deadline = time.monotonic() + 20
        while not killed and time.monotonic() < deadline:
            for pid in hooks_running(node.layout.socket):
                time.sleep(after_ms / 1000)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if result.returncode == 0:
        # The hook completed before the kill, or the kill missed it: the container ran with its share.
        assert result.stdout == "started\n"
        killed.append(0)
    else:
        assert result.stdout == ""
    killer.join()

    def gone() -> bool:
        for grant in node.client.grants():
            # Killed before the daemon knew of the container: it expires.
            if grant["phase"] == "bound":
                assert grant["expires_ns"] - grant["created_ns"] <= 21e9
                node.client.release(grant["id"])
        return not node.client.grants()

    until(gone, "the grant is gone")


def test_a_bundle_is_started_again_and_again(runc, node):
    """One after the other, at once, and after a start that ended before any hook: its config stays the very same
    file."""
    program = ("/bin/sh", "-c", "cat /run/gpushare/self/limits >/dev/null && echo ran")
    # at once: each in a cgroup of its own
    command = runc.command(*program, annotations=SHARE, change=lambda config: config["linux"].pop("cgroupsPath"))
    where = runc.directory / runc.names[-1]
    text, inode = (where / "config.json").read_text(), (where / "config.json").stat().st_ino

    def run(name: str, *more: str) -> str:
        runc.names.append(f"{command[-1]}-{name}")
        done = subprocess.run(
            [*command[:-1], *more, runc.names[-1]], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        return done.stdout or done.stderr

    assert [run("one"), run("two")] == ["ran\n"] * 2
    with ThreadPoolExecutor() as threads:
        assert [*threads.map(run, ["three", "four", "five"])] == ["ran\n"] * 3
    assert sorted(os.listdir(where)) == ["config.json", "rootfs"]
    assert "cannot use console socket" in run("six", "--console-socket", "/nonexistent/socket")
    assert ".config.json.before-gpushare" in os.listdir(where)
    assert run("seven") == "ran\n"
    assert ((where / "config.json").read_text(), (where / "config.json").stat().st_ino) == (text, inode)
    node.nothing_left()


def refused_by_runc(config):
    config["linux"]["namespaces"].append({"type": "nonsense"})


def failing_hook(config):
    config["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}


@pytest.mark.parametrize("change", [refused_by_runc, failing_hook])
def test_a_start_that_fails_before_our_hook_gives_the_share_back(runc, node, change):
    result = runc.run("/bin/echo", "started", annotations=SHARE, change=change)
    assert result.returncode != 0 and result.stdout == ""
    until(lambda: not node.client.grants(), "long before it would expire", 5)
    [last] = [grant for grant in node.client.grants(ended=True) if grant["id"] == runc.grant()]
    assert (last["phase"], last["reason"]) == ("failed", "the runtime ended before it started the container")


def test_a_start_that_takes_longer_than_its_time_to_live(runc, node, short_path):
    """As on a slow machine: the daemon sees that the process that starts the container is alive."""
    gate = short_path / "gate"
    os.mkfifo(gate)

    def waiting(config):
        config["hooks"] = {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", f"read line < {gate}"]}]}

    short = (
        "from gpushare.daemon.engines.containers import Containers",
        "made = Containers._grant",
        "Containers._grant = lambda self, peer, wanted: made(self, peer, {**wanted, 'ttl_seconds': 1})",
    )
    options = {"annotations": SHARE, "change": waiting}
    with node.started_with(*short), runc.start("/bin/echo", "started", **options) as process:
        try:
            (grant,) = until(node.client.grants, "it has a grant")
            until(lambda: time.time_ns() > grant["expires_ns"] + 500e6, "its time is over")
            assert node.client.grant(grant["id"])["phase"] == "bound"
        finally:
            gate.write_text("go on\n")
        assert process.stdout.read() == "started\n"
        assert process.wait(20) == 0


def test_killed_engine_leaks_nothing(runc, node):
    process = runc.start("/bin/cat", annotations=SHARE)
    with process:
        until(lambda: [grant["phase"] for grant in node.client.grants()] == ["active"], "the container runs")
        init = node.client.grants()[0]["pid"]
        process.kill()
        process.wait(10)
        os.kill(init, signal.SIGKILL)
    node.nothing_left()


def test_killed_daemon_takes_the_container_back(runc, node):
    process = runc.start("/bin/cat", annotations=SHARE)
    with process:
        until(lambda: [grant["phase"] for grant in node.client.grants()] == ["active"], "the container runs")
        before = node.client.grants()[0]
        node.kill()
        process.stdin.write("still here\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still here\n"
        node.start()
        after = node.client.grants()[0]
        assert (after["id"], after["phase"], after["pid"]) == (before["id"], "active", before["pid"])
        process.stdin.close()
        assert process.wait(20) == 0
