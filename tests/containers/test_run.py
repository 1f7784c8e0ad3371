"""gpushare run: the same share for a plain process."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from run.running import GPUSHARE, Daemon

from gpushare.enforce import cgroup
from gpushare.paths import INTERPOSERS, LIB_DIR

SHARE = ("--memory", "1GiB", "--time", "30%")
# Prints how many devices CUDA and NVML show, under the same numbers.
SAME_NUMBERS = """
import ctypes, uuid
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
count, counted, raw, text = ctypes.c_int(), ctypes.c_uint(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(96)
assert cuda.cuInit(0) == nvml.nvmlInit_v2() == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == nvml.nvmlDeviceGetCount_v2(ctypes.byref(counted)) == 0
assert count.value == counted.value
handle = ctypes.c_void_p()
for index in range(count.value):
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetUUID(handle, text, 96) == cuda.cuDeviceGetUuid_v2(raw, index) == 0
    assert text.value.decode() == f"GPU-{uuid.UUID(bytes=bytes(raw))}"
assert nvml.nvmlDeviceGetHandleByIndex_v2(count.value, ctypes.byref(handle)) == 2  # NVML_ERROR_INVALID_ARGUMENT
print(count.value)
"""


def one_line(result, *parts: str) -> None:
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("gpushare: "), result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize("status", [0, 3, 125])
def test_status_is_the_commands(node, status):
    result = node.cli("run", *SHARE, "--", "sh", "-c", f"echo out; echo err >&2; exit {status}")
    assert (result.returncode, result.stdout) == (status, "out\n")
    assert "err\n" in result.stderr


def test_signal_is_the_commands(node):
    result = node.cli("run", *SHARE, "--", "sh", "-c", "kill -TERM $$")
    assert result.returncode == -signal.SIGTERM


def test_arguments_and_stdin_pass_untouched(node):
    result = node.cli(
        "run", *SHARE, "--", "sh", "-c", 'cat; printf "%s|" "$@"', "x", "--", "--memory", "", "a b", input="in"
    )
    assert result.stdout == "in--|--memory||a b|"


def test_signals_are_as_python_found_them(node):
    result = node.cli("run", *SHARE, "--", "grep", "SigIgn", "/proc/self/status")
    ignored = int(result.stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


def test_runs_in_its_own_cgroup_and_environment(node):
    result = node.cli(
        "run", *SHARE, "--", "sh", "-c", "cat /proc/self/cgroup; echo $GPUSHARE_GRANT_DIR; echo $LD_PRELOAD"
    )
    *groups, directory, preload = result.stdout.splitlines()
    grant = directory.split("/")[-2]
    assert any(line.endswith(f"/{cgroup.PREFIX}{grant}") for line in groups)
    assert preload.startswith(":".join(map(str, INTERPOSERS)))


def test_tenant_program_gets_its_share(node):
    result = node.cli(
        "run", *SHARE, "--", LIB_DIR / "gpushare-spin", "--alloc", "512MiB", "--kernel-ns", "200000", "--seconds", "0.5"
    )
    assert result.returncode == 0, result.stderr + result.stdout
    ready, alloc, idle = map(json.loads, result.stdout.splitlines())
    assert (ready["event"], alloc["ok"], idle["event"]) == ("ready", True, "idle")
    assert idle["kernels"] > 0


def test_memory_limit(node):
    result = node.cli("run", *SHARE, "--", LIB_DIR / "gpushare-spin", "--alloc", "1GiB", "--seconds", "0")
    alloc = json.loads(result.stdout.splitlines()[1])
    assert (alloc["ok"], alloc["name"]) == (False, "CUDA_ERROR_OUT_OF_MEMORY")


def test_python_tenant(node):
    pytest.importorskip("cuda.bindings")
    result = node.cli("run", *SHARE, "--", sys.executable, LIB_DIR / "spin.py", input="memory\nalloc 2GiB\nquit\n")
    ready, memory, alloc = map(json.loads, result.stdout.splitlines())
    assert (ready["event"], memory["total_bytes"], alloc["ok"]) == ("ready", 1 << 30, False)


@pytest.mark.promise("no-start-without-share")
def test_refusal_is_125_with_the_reason(node):
    result = node.cli("run", "--memory", "17GiB", "--time", "30%", "--", "echo", "started")
    assert (result.returncode, result.stdout) == (125, "")
    one_line(result, "17")


def test_refusal_in_json(node):
    result = node.cli("run", "--json", "--memory", "17GiB", "--time", "30%", "--", "echo", "started")
    assert result.returncode == 125
    answer = json.loads(result.stdout)
    assert answer["error"]["code"] == "refused"
    assert answer["error"]["message"] in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--memory", "12 GiBs", "--time", "30%"), ("--memory", "-3", "--time", "30%"), ("--memory", "1GiB"),
        ("--memory", "1GiB", "--time", "140%"), ("--memory", "1GiB", "--time", "NaN"), ("--time", "30%"),
        (*SHARE, "--devices", "0"),
        (*SHARE, "--gpu", "GPU-none"), (*SHARE, "--tenant", "nobody-knows"), (*SHARE, "--class", "royal"),
    ],
)  # fmt: skip
def test_malformed_request_starts_nothing(node, arguments):
    result = node.cli("run", *arguments, "--", "echo", "started")
    assert (result.returncode, result.stdout) == (2, "")
    one_line(result)


def test_no_command(node):
    for arguments in ((), ("--",)):
        result = node.cli("run", *SHARE, *arguments)
        assert result.returncode == 2
        one_line(result, "no command")


def test_command_that_cannot_be_run(node, tmp_path):
    assert node.cli("run", *SHARE, "--", "no-such-command").returncode == 127
    (tmp_path / "data").write_text("x")
    assert node.cli("run", *SHARE, "--", tmp_path / "data").returncode == 126
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    result = node.cli("run", *SHARE, "--", tmp_path / "broken")
    assert result.returncode == 125
    one_line(result, "cannot be run")


def test_absent_daemon(node, tmp_path):
    result = node.cli("run", "--socket", tmp_path / "none", *SHARE, "--", "echo", "started")
    assert (result.returncode, result.stdout) == (125, "")
    one_line(result, "no daemon at")


def test_a_daemon_that_is_restarted_is_waited_for(node):
    node.kill()
    command = [*GPUSHARE, "run", "--socket", str(node.layout.socket), *SHARE, "--", "echo", "started"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        node.start()
        out, reply = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "started\n"), reply


def test_a_user_without_permission(node):
    """Neither root nor in the daemon's group: status 4 and a remedy."""
    # Changes to that user only after all imports, including lazy ones, because only root may be able to read the Python
    # installation.
    code = (
        "import os, sys; from gpushare import client; import gpushare.client.transport; from gpushare.cli import main\n"
        "main.build_parser().parse_args(sys.argv[1:])\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(main.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", *SHARE, "--", "echo", "started"]
    result = subprocess.run(command, capture_output=True, text=True, env=node.env)
    assert (result.returncode, result.stdout) == (4, "")
    one_line(result, "permission denied")


def start(node, *command):
    return subprocess.Popen(
        [sys.executable, "-m", "gpushare", "run", *SHARE, "--", *command],
        env=node.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_killed_command_gives_everything_back(node):
    process = start(node, LIB_DIR / "gpushare-spin", "--alloc", "256MiB")
    with process:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        assert json.loads(process.stdout.readline())["ok"]
        process.kill()
    node.nothing_left()


def test_children_hold_the_grant_until_the_last_has_ended(node):
    process = start(node, "sh", "-c", "sleep 1000 & echo $!")
    with process:
        child = int(process.stdout.readline())
        assert process.wait(10) == 0
        assert [grant["phase"] for grant in node.client.grants()] == ["active"]
        os.kill(child, signal.SIGKILL)
    node.nothing_left()


@pytest.mark.parametrize("after_ms", [20, 60, 100, 140, 180])
def test_killed_while_it_starts(node, after_ms):
    """The reservation is soon released: the daemon notices the end of a process that it knows, and reservations
    expire."""
    process = start(node, "sleep", "1000")
    with process:
        time.sleep(after_ms / 1000)
        process.kill()
    node.nothing_left()


def test_a_grant_of_one_device_shows_that_one_only(short_path):
    """On a node with several devices a program sees its own as device 0."""
    two = Daemon(short_path / "two", "2x16GiB")
    try:
        two.start()
        for gpu in ("0", "1"):
            tenant = two.spin("1GiB", "10%", gpu=gpu)
            assert tenant.tell("memory")["total_bytes"] == 1 << 30
            assert [row["pid"] for row in two.books(int(gpu))["processes"] if row["alive"]] == [tenant.pid]
            tenant.close()
        for how in (["--gpu", "1"], ["--devices", "2"]):
            run = two.cli("run", "--memory", "1GiB", "--time", "10%", *how, "--", sys.executable, "-c", SAME_NUMBERS)
            assert run.returncode == 0, run.stderr
            assert int(run.stdout) == (1 if how[0] == "--gpu" else 2)
    finally:
        two.stop()


def test_nvidia_smi_is_the_simulated_devices(node):
    """A program of the simulated driver, found first in PATH; in a share it shows the share."""
    listed = node.cli("sim", "exec", "--", "nvidia-smi", "-L")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [line.split("(UUID: ")[1].rstrip(")") for line in listed.stdout.splitlines()] == [
        device["id"] for device in node.client.devices()
    ]
    ask = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader")
    shared = node.cli("run", "--memory", "1GiB", "--time", "10%", "--", *ask)
    assert (shared.stdout, shared.stderr) == ("1024 MiB\n", "")


def test_a_command_on_the_simulated_devices_without_a_share(node):
    """The command finds the simulated driver and runtime even if it has its own runtime; its status is passed on."""
    code = (
        "import ctypes; count = ctypes.c_int()\n"
        "assert ctypes.CDLL('libcudart.so.13').cudaGetDeviceCount(ctypes.byref(count)) == 0; print(count.value)"
    )
    result = node.cli("sim", "exec", "--", sys.executable, "-c", code)
    assert (result.stdout, result.stderr) == (f"{len(node.client.devices())}\n", "")
    assert node.client.grants() == []
    assert node.cli("sim", "exec", "--", "sh", "-c", "exit 7").returncode == 7
    assert node.cli("sim", "exec", "--", "no-such-command").returncode == 127
    assert "no command" in node.cli("sim", "exec").stderr
