"""bench/gpu without a GPU: every part that can runs on the simulated device; nothing here proves a number."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from gpubench import build, decision, isolate, machine, registry
from gpubench.config import Config, Peer
from gpubench.deadline import Deadline
from gpubench.parts import clients
from gpubench.results import Results, markdown
from gpubench.stage import Stage
from gpubench.stats import loss, shares, spread, windows
from gpubench.worker import Unit, window
from running import alive, until

from gpushare import paths

RUN = machine.ROOT / "bench" / "gpu" / "run"
root = pytest.mark.skipif(os.geteuid() != 0, reason="bench/gpu/run needs root")


def run(*arguments: object, seconds: float = 110) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def simulated(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("--simulated", "--installed", *arguments)


def only_run(directory: Path) -> dict:
    (file,) = directory.glob("*.json")
    assert file.name.startswith("simulated-")
    (found,) = json.loads(file.read_text())["runs"]
    return found


@root
@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a driver is installed: that is measured")
def test_without_a_driver_it_checks_itself(tmp_path):
    done = run("--installed", "--out", tmp_path, "--part", "stalls")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.startswith("no NVIDIA driver is here")
    assert only_run(tmp_path)["simulated"] is True


@root
def test_every_part_runs_on_the_simulated_device(tmp_path):
    done = simulated("--out", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = only_run(tmp_path)
    assert found["simulated"] is True
    states = {entry["part"]: entry["state"] for entry in found["parts"]}
    assert states == {part.name: "skipped" if part.real else "ok" for part in registry.PARTS}
    rows = {entry["part"]: {row["name"]: row for row in entry["rows"]} for entry in found["parts"]}
    # The guard has nothing to see here, and says so instead of giving rows.
    assert {name for name in rows if not rows[name]} == {part.name for part in registry.PARTS if part.real} | {"guard"}
    # The programs measured what the simulator is known to do.
    assert rows["hidden"]["a bare context"]["value"] == 16
    assert rows["clients"]["clients caught by gpushare"]["value"] == 1
    assert "hung in 2 of 2" in rows["stalls"]["6 ms of kernels behind a wait-value, a hard gate of 2 ms"]["text"]
    assert 5 < rows["stalls"]["6 ms of kernels behind a wait-value, a soft gate of 2 ms"]["value"] < 500
    assert rows["memory"]["usable under a limit of 4 GiB, gpushare"]["value"] == 4096 - 16 - 2
    assert rows["memory"]["the same and 1 GiB more: NVML of the device beyond gpushare's books"]["value"] == 0
    peak = next(row for name, row in rows["memory"].items() if "fill it together" in name)
    assert 3900 < peak["value"] <= 4096
    metered = rows["metering"]["100 us kernels back to back: busy time against the calibrated work"]
    assert abs(metered["value"]) < 5
    assert rows["suspend"]["suspend with 1 GiB"]["text"] == "refused: cuCheckpointProcessLock: CUDA_ERROR_NOT_SUPPORTED"
    table = next(tmp_path.glob("*.md")).read_text()
    assert "SIMULATED: no real GPU was measured" in table
    assert "## Not built" in table
    assert "`frameworks`: skipped: needs a real GPU" in table
    assert table.count("| --") == 0  # every row has a name
    # It decides nothing, but its rows are what a real device's are judged by.
    undecided = decision.made({entry["part"]: entry["rows"] for entry in found["parts"]})
    missing = {
        one["claim"] for key in ("claims", "targets") for one in undecided[key] if one["verdict"] == "not measured"
    }
    real_only = ("Together when not", "Local memory", "NVML's bytes", "share error over 10 s", "steps of PyTorch")
    assert [claim for claim in missing if not claim.startswith(real_only)] == []
    assert len(undecided["defaults"]) == 8
    assert "What these numbers decide" not in table


@root
def test_a_peer_is_measured_beside(tmp_path):
    """Another preload library: gpushare's own without a grant stands in for it. It holds no limit, and that is said."""
    peer = f"other={paths.INTERPOSER},SHARE={{memory_mib}}"
    done = simulated("--out", tmp_path, "--part", "clients", "--peer", peer)
    assert done.returncode == 0, done.stderr[-3000:]
    (entry,) = only_run(tmp_path)["parts"]
    values = {row["name"]: row["value"] for row in entry["rows"] if row["name"].startswith("clients caught")}
    assert values == {"clients caught by gpushare": 1, "clients caught by other": 0}


def test_what_cannot_be_is_refused(tmp_path):
    def status(*arguments: object) -> int:
        done = run(*arguments)
        assert len(done.stderr.splitlines()) >= 1
        return done.returncode

    assert status("--part", "nothing") == 2
    assert status("--simulated", "--out", machine.ROOT / "bench" / "results") == 2
    assert status("--simulated", "--peer", f"x={tmp_path / 'absent.so'}") == 2
    assert status("--build-only") == 2
    listed = run("--list")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == len(registry.PARTS)


def test_groups_end_in_time():
    for group in registry.groups():
        assert sum(part.seconds for part in registry.select([], group)) <= registry.GROUP_SECONDS, group
    assert [part.name for part in registry.select(["shares", "guard"], None)] == ["shares", "guard"]
    assert registry.select([], None) == list(registry.PARTS)


@pytest.fixture
def stage():
    """On the simulated device; below /tmp because sockets need short names."""
    work = Path(tempfile.mkdtemp(prefix="gsb-", dir="/tmp"))
    build.programs(
        build.Shell(work / "build.log", Deadline(None)), work / "programs", paths.SIM_LIB_DIR / "libcuda.so.1", gpu=None
    )
    found = Stage(Config(True, str(work), str(work / "programs"), str(paths.LIB_DIR)))
    yield found
    found.close()
    shutil.rmtree(work)


@root
def test_event_spans_leave_out_what_the_gate_gave_away(stage):
    """Two programs whose units are five leases long: the spans of each are its own half, not both halves."""
    page, unit = stage.work / "page", Unit(100, 1000)
    with (
        stage.load(gate=(page, 0)) as first,
        stage.load(gate=(page, 1)) as second,
        stage.start("bare", [stage.program("token"), str(page), "drain"]),
    ):
        for report in window(2.5, first.set(unit), second.set(unit)):
            assert report["latency_ns"]["p50"] > 1.6 * unit.work_ns
            assert report["span_ns"]["p50"] < 1.6 * unit.work_ns


@root
def test_steps_say_what_local_memory_is_made_of(stage):
    with stage.start("bare", [stage.program("steps"), stage.spin_ptx]) as steps:
        steps.ask("init")
        found = steps.ask("context")
    assert (found["processors"], found["threads"], found["stack_bytes"]) == (108, 2048, 1024)


def wakes_beside(stage, policy, unit, pause_ms):
    page = stage.work / "page"
    with (
        stage.load(gate=(page, 0)) as busy,
        stage.load(gate=(page, 1)) as waker,
        stage.start("bare", [stage.program("token"), str(page), policy]),
    ):
        busy.set(unit)
        return window(2.5, waker.set(Unit(20, 100, graph=True, pause_ms=pause_ms, wake=True)), busy)[0]["wake_ns"]


@root
def test_who_slept_takes_the_lease_from_one_that_is_busy(stage):
    """Otherwise a wake would measure what is left of the other's 20 ms."""
    wakes = wakes_beside(stage, "overlap", Unit(4, 1000), 12)
    assert wakes["n"] > 20
    assert wakes["p50"] < 4e6, wakes


@root
def test_a_revoke_while_the_gate_waits_for_the_bound_lets_nothing_more_through(stage):
    """Otherwise who drains would run another kernel of 20 ms after the one that runs, and the wake take 20 to 40."""
    wakes = wakes_beside(stage, "drain", Unit(1, 20_000), 30)
    assert wakes["n"] > 10
    assert wakes["p50"] < 20e6, wakes


@root
def test_where_nothing_can_be_shared_the_reason_is_named_once(tmp_path, monkeypatch):
    """A `gpushare run` that ends stands in for a machine without control groups."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'run' in sys.argv[1:2] and 'true' in sys.argv: sys.exit('no control groups here')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = simulated("--out", tmp_path / "out", "--part", "memory,reclaim,stalls")
    assert done.returncode == 1, done.stderr[-3000:]
    found = only_run(tmp_path / "out")
    assert "no control groups here" in found["preflight"]["reason"]
    assert {entry["part"]: entry["state"] for entry in found["parts"]} == {
        "memory": "not run",
        "reclaim": "not run",
        "stalls": "ok",
    }
    assert next((tmp_path / "out").glob("*.md")).read_text().count("no control groups here") == 1


def test_only_a_lack_of_memory_is_a_limit_that_holds():
    bare = {"result": 7, "refused": "CUDA_SUCCESS", "total_bytes": 140 << 30}
    verdicts = {
        name: clients._judge(bare, {"result": 7, "refused": name, "total_bytes": clients.SHARE})[0]
        for name in ("CUDA_ERROR_OUT_OF_MEMORY", "RESOURCE_EXHAUSTED", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE")
    }
    assert list(verdicts.values()) == [True, True, False, False]
    full = {"refused": "OutOfMemoryError", "total_bytes": clients.SHARE}
    assert not clients._judge(bare, {**full, "result": 8})[0]
    assert not clients._judge(bare, {**full, "result": 7, "total_bytes": 140 << 30})[0]


@root
def test_a_program_that_cannot_be_built_costs_what_needs_it(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text(
        f"#!/bin/sh\ncase $* in *stalls.c*) echo 'x.c:1: error: no such thing' >&2; exit 1;; esac\n"
        f'exec {shutil.which("cc")} "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = simulated("--out", tmp_path / "out", "--part", "stalls,copies")
    assert done.returncode == 1, done.stderr[-3000:]
    found = {entry["part"]: entry for entry in only_run(tmp_path / "out")["parts"]}
    assert found["copies"]["state"] == "ok"
    assert (
        "a wait-value behind a gate: stalls could not be built: x.c:1: error: no such thing"
        in (found["stalls"]["skipped"])
    )
    assert not found["stalls"]["rows"]
    assert found["stalls"]["state"] == "skipped"


@root
def test_what_has_no_time_left_is_not_run(tmp_path):
    done = simulated("--out", tmp_path, "--part", "stalls", "--within", 30)
    assert done.returncode == 1, done.stderr[-3000:]
    (entry,) = only_run(tmp_path)["parts"]
    assert (entry["state"], entry["reason"]) == ("not run", "of the time for everything, too little was left")


BROKEN = """
import subprocess, sys, time

def fails(context):
    context.row("measured before", 1.0, "ms")
    raise RuntimeError("the part broke")

def hangs(context):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    context.row("child", child.pid)
    time.sleep(1000)

def dies(context):
    import os
    os._exit(3)

def items(context):
    from gpubench.config import MissingError
    with context.item("first"):
        raise RuntimeError("broke")
    with context.item("second"):
        raise MissingError("not here")
    with context.item("third"):
        context.row("third", 1.0, "ms")

def needs(context):
    context.stage.program("absent")

def prints(context):
    print("a library's greeting")
    context.row("measured", 1.0, "ms")
"""


@pytest.mark.parametrize(
    ("function", "state", "reason", "rows"),
    [
        ("fails", "failed", "RuntimeError: the part broke", 1),
        ("hangs", "timed out", "stopped after its limit of 2 s", 1),
        ("dies", "failed", "its process ended with status 3", 0),
        ("prints", "ok", "", 1),
        ("items", "incomplete", "1 of what it measures failed", 1),
        ("needs", "skipped", "absent could not be built: why", 0),
    ],
)
def test_a_bad_part_keeps_its_rows_and_leaves_nothing(tmp_path, function, state, reason, rows):
    (tmp_path / "broken.py").write_text(BROKEN)
    not_built = {"absent": "absent could not be built: why"}
    config = Config(True, str(tmp_path), str(tmp_path), str(tmp_path), not_built=not_built)
    config.save(tmp_path / "config.json")
    path = os.pathsep.join([str(tmp_path), str(machine.ROOT / "bench" / "gpu"), str(Path(paths.__file__).parents[1])])
    results = Results(tmp_path / "out" / "x.json", machine.facts(True), "run")
    part = registry.Part("bad", "none", "A bad part", f"broken:{function}", 2)
    entry = results.begin(part)
    started = time.monotonic()
    isolate.run(part, tmp_path / "config.json", {**os.environ, "PYTHONPATH": path}, 2, entry, results.write)
    assert time.monotonic() - started < 15
    assert (entry["state"], entry["reason"], len(entry["rows"])) == (state, reason, rows)
    assert json.loads(results.path.read_text())["runs"][0]["parts"] == [entry]
    if function == "items":
        assert (entry["broken"], entry["skipped"]) == (["first: RuntimeError: broke"], ["second: not here"])
    if function == "hangs":
        assert not alive(int(entry["rows"][0]["value"]))


def _row(name: str, value: float | None, **more: object) -> dict:
    return {"name": name, "value": value, "unit": "ms", "low": None, "high": None, "n": None, "against": "",
            "text": "", "values": {}, **more}  # fmt: skip


def test_a_failed_run_does_not_hide_an_earlier_good_one():
    def entry(state: str, value: float) -> dict:
        return {
            "part": "reclaim",
            "state": state,
            "reason": "why",
            "seconds": 1,
            "rows": [_row("it", value)],
            "skipped": [],
        }

    facts = {"gpu": "G", "date": "d", "machine": "m", "driver": "1", "cuda": "13", "simulated": False, "command": "c"}
    document = {
        "runs": [
            {**facts, "commit": "good", "parts": [entry("ok", 17)]},
            {**facts, "commit": "bad", "parts": [entry("failed", 99)]},
        ]
    }
    table = markdown(document)
    assert "17 ms" in table
    assert "99 ms" not in table
    assert "`reclaim` at good" in table
    assert "SIMULATED" not in table
    document["runs"].append({**facts, "commit": "newer", "parts": [entry("ok", 18)]})
    assert "18 ms" in markdown(document)
    assert re.search(r"^- `shares`: not run$", markdown(document), re.MULTILINE)


def test_a_part_that_only_failed_is_marked_incomplete():
    spread_row = _row("it | has a bar", 2.0, low=1.0, high=4.0, n=3, against="a | b")
    entry = {
        "part": "shares",
        "state": "timed out",
        "reason": "limit",
        "seconds": 1,
        "rows": [spread_row],
        "skipped": ["x"],
    }
    run_ = {"gpu": "G", "date": "d", "machine": "m", "driver": "1", "cuda": "13", "simulated": False, "command": "c",
            "commit": "k", "parts": [entry]}  # fmt: skip
    table = markdown({"runs": [run_]})
    assert "| it / has a bar | 2 ms (1 to 4, n=3) | a / b |" in table
    assert "**Incomplete: timed out.**" in table
    assert "- `shares`: timed out: limit" in table
    assert "- `shares`: x" in table


def test_runs_of_several_machines_become_one_result(tmp_path):
    def written(name, machine_, gpu="NVIDIA H200", **part):
        entry = {"state": "ok", "reason": "", "seconds": 1, "rows": [_row("wake", 2.0)], "skipped": [], **part}
        facts = {"gpu": gpu, "date": "2026-01-02", "machine": machine_, "driver": "580", "cuda": "13.0"}
        facts |= {"simulated": False, "command": "run", "commit": "abc", "started": f"2026-01-02T0{len(name)}"}
        (tmp_path / name).write_text(json.dumps({"runs": [{**facts, "parts": [entry]}]}))
        return tmp_path / name

    files = [written("bb", "second machine", part="shares"), written("a", "first machine", part="reclaim")]
    out = tmp_path / "out"
    for _ in range(2):  # the second time adds nothing
        done = run("--merge", *files, "--out", out)
        assert done.returncode == 0, done.stderr
        found = json.loads((out / "h200-2026-01-02.json").read_text())
        assert [one["machine"] for one in found["runs"]] == ["first machine", "second machine"]
    table = (out / "h200-2026-01-02.md").read_text()
    assert re.search(r"^`reclaim` at abc.*first machine; driver 580", table, re.MULTILINE)
    assert re.search(r"^`shares` at abc.*second machine; driver 580", table, re.MULTILINE)
    assert run("--merge", *files, written("ccc", "m", "NVIDIA L4", part="shares"), "--out", out).returncode == 2
    assert run("--merge", tmp_path / "absent", "--out", out).returncode == 2


def test_statistics():
    assert spread([3, 1, 2]).median == 2
    assert loss([100, 200], [75, 150]).median == 25
    assert shares([1, 3]) == [25, 75]
    # The first program began a bucket later; first and last buckets of each are incomplete.
    assert windows([11, 10], [[9, 1, 2, 3, 9], [9, 9, 4, 5, 6, 9]], 1) == [[1, 4], [2, 5], [3, 6]]
    assert windows([11, 10], [[9, 1, 2, 3, 9], [9, 9, 4, 5, 6, 9]], 2) == [[3, 9]]


def test_peer_option(tmp_path):
    library = tmp_path / "libother.so"
    library.touch()
    peer = Peer.parse(f"other={library},A=1,LIMIT={{memory_mib}}m")
    assert (peer.name, peer.library, peer.environment) == ("other", str(library), {"A": "1", "LIMIT": "{memory_mib}m"})
    for text in ("other", f"={library}", f"gpushare={library}", f"other={library},A", f"other={library},=1"):
        with pytest.raises(ValueError, match="--peer"):
            Peer.parse(text)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="CUDA's compiler is not installed")
def test_kernels_compile(tmp_path):
    native = machine.ROOT / "bench" / "gpu" / "native"
    for file, names in (("kernels.cu", (b"burn", b"stream", b"gemm")), ("big_stack.cu", (b"big_stack",))):
        command = ["nvcc", "-cubin", "-arch=sm_90", "-o", str(tmp_path / "k.cubin"), str(native / file)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        for name in names:
            assert name in (tmp_path / "k.cubin").read_bytes()


def _descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _started(pid: int) -> tuple[list[int], int] | None:
    """All that the command has started, once a daemon and a load program are among it, and that program."""
    pids = _descendants(pid)
    load = next((one for one in pids if "/load " in _command(one).partition("--")[0]), None)
    return (pids, load) if load is not None and any(" daemon " in _command(one) for one in pids) else None


@root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_command(tmp_path, number):
    command = [sys.executable, str(RUN), "--simulated", "--installed", "--out", str(tmp_path), "--part", "shares"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids: list[int] = []
    work = None
    try:
        pids, load = until(lambda: _started(process.pid), 60)
        work = Path(f"/proc/{load}/exe").readlink().parents[1]
        # A program that is stuck: left to itself, the part would wait a minute for it.
        os.kill(load, signal.SIGSTOP)
        process.send_signal(number)
        until(lambda: not any(alive(pid) for pid in [process.pid, *pids]), 40, "it and its children end")
    finally:
        for pid in filter(alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    (entry,) = only_run(tmp_path)["parts"]
    assert entry["state"] == ("running" if number == signal.SIGKILL else "interrupted")
    logs = list(tmp_path.glob("*.logs.txt"))
    assert [("==> daemon.log <==" in log.read_text()) for log in logs] == [True] * (number == signal.SIGTERM)
