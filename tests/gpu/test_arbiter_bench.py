"""bench/arbiter: its arithmetic, and one quick run of all systems. Does not check performance."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from arbiterbench import judge, load, plot, report, stats
from arbiterbench.main import plan
from arbiterbench.systems import SYSTEMS
from arbiterbench.workloads import MS, WORKLOADS
from gpubench.machine import ROOT

RUN = ROOT / "bench" / "arbiter" / "run"
BY_NAME = {workload.name: workload for workload in WORKLOADS}
root = pytest.mark.skipif(os.geteuid() != 0, reason="bench/arbiter/run needs root")


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Runs it in the root of the checkout, whose package must not hide the installed one."""
    command = [sys.executable, str(RUN), *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)


@root
def test_it_runs_from_the_root_of_a_checkout(tmp_path):
    done = run("--quick", "--seconds", 0.6, "--workload", "alone", "--system", "gpushare", "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.glob("*.json")
    assert {case["system"] for case in json.loads(file.read_text())["cases"]} == {"none", "gpushare"}


@pytest.mark.slow
@root
def test_a_quick_run_of_two_workloads_under_all_systems(tmp_path):
    names = ("25-75", "inference-0.1")
    done = run("--quick", "--workload", ",".join(names), "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text())
    assert found["device"] == "simulated"
    assert found["failed"] == []
    assert all(found[word] for word in ("machine", "date", "commit", "command"))
    cases = {(case["workload"], case["system"]): case for case in found["cases"]}
    assert set(cases) == {(name, system.name) for name in names for system in SYSTEMS} | {
        ("alone", "none"),
        ("alone-requests", "none"),
    }

    for case in cases.values():
        # The simulator's accounting: the tenants' work is the device's work, and together with switches and idle time
        # it is the wall time.
        assert sum(case["tenant_busy"]) == pytest.approx(case["busy"], rel=1e-6)
        rest = 1 - case["busy"] - case["switching"]
        assert rest >= -1e-6
        if case["idle_with_waiters"] is not None:
            assert 0 <= case["idle_with_waiters"] <= rest + 0.02
        assert case["load"]["cores"] >= 1
    for name in names:
        # Under every system, both tenants of a case get work done, and an independent source confirms it.
        for system in SYSTEMS:
            case = cases[name, system.name]
            assert len(case["tenant_busy"]) == 2
            assert all(rate > 0 for rate in case["tenant_kernels_s"]) or system.name == "lock"
    # The device's own time slicing ignores shares; gpushare enforces them.
    errors = {system.name: cases["25-75", system.name]["share_error_1s"] for system in SYSTEMS}
    assert errors["none"] > 15
    assert errors["gpushare"] < 15
    # A lock with a quantum delays requests for that long; the arbiter's events record each wake.
    assert cases["inference-0.1", "gpushare"]["wake_to_lease_ms"]["n"] > 10
    assert cases["inference-0.1", "gpushare"]["reclaim_ms"]["n"] > 10
    assert cases["inference-0.1", "gpushare"]["arbiter_cpu"] > 0
    assert cases["inference-0.1", "slices"]["latency_ms"]["max"] > 100
    assert cases["25-75", "none"]["switches_s"] > 100

    table = file.with_suffix(".md").read_text()
    header = f"| system | {' | '.join(report.COLUMNS)} |"
    assert table.count(header) == 4
    rows = [line for line in table.splitlines() if line.startswith("| gpushare |")]
    assert len(rows) == 2
    assert all(line.count("|") == header.count("|") for line in rows)
    assert {target["workload"] for target in found["targets"]} == set(names)
    assert f"]({file.with_suffix('.svg').name})" in table
    picture = ElementTree.parse(file.with_suffix(".svg")).getroot()
    assert picture.tag.endswith("svg")
    # Each titled box is a bar. Two groups; a system that serves too little on a busy machine has no figure.
    bars = [
        node for node in picture.iter() if node.tag.endswith("rect") and any(one.tag.endswith("title") for one in node)
    ]
    assert 2 * len(SYSTEMS) - 2 <= len(bars) <= 2 * len(SYSTEMS)


def test_what_does_not_exist_is_refused():
    for wrong in (("--workload", "nothing"), ("--system", "nothing")):
        done = run(*wrong)
        assert done.returncode == 2
        assert "there is no nothing" in done.stderr
    listed = run("--list")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == len(WORKLOADS) + len(SYSTEMS)


def test_cases_bring_what_they_are_compared_with():
    chosen = [(workload.name, system.name) for workload, system in plan(["inference-4", "launch-bound"], ["gpushare"])]
    assert chosen == [
        ("alone", "none"),
        ("alone-requests", "none"),
        ("launch-bound", "none"),
        ("launch-bound", "gpushare"),
        ("inference-4", "gpushare"),
    ]
    assert ("crowd", "none") not in [(w.name, s.name) for w, s in plan(list(BY_NAME), [s.name for s in SYSTEMS])]


def test_every_workload_can_be_promised():
    """The total demand does not exceed the device, and the work fits into its period."""
    for workload in WORKLOADS:
        for device in range(workload.devices):
            here = [tenant for tenant in workload.tenants if tenant.device == device]
            assert 0 < sum(tenant.share_milli for tenant in here) <= 1000, workload.name
        for tenant in workload.tenants:
            if tenant.work.pattern == "requests":
                assert tenant.work.kernels * tenant.work.kernel_ns < tenant.work.period_ns - 2 * tenant.work.jitter_ns


def test_share_errors():
    second = 10**9
    times = [at * second // 2 for at in range(5)]
    # 25/75 except for the last half second, in which the first gets everything.
    busy = [[0, 0], [1, 3], [2, 6], [3, 9], [7, 9]]
    assert stats.share_errors(times, busy, [0.25, 0.75], second) == pytest.approx([0, 0, 100 * (5 / 8 - 0.25)])
    assert stats.share_errors(times, busy, [0.25, 0.75], 2 * second) == pytest.approx([100 * (7 / 16 - 0.25)])
    assert stats.share_errors(times, busy, [0.25, 0.75], 3 * second) == []


def test_percentiles():
    assert stats.percentile([], 0.5) is None
    assert stats.percentile([3, 1, 2], 0.5) == 2
    assert stats.percentile(range(1, 101), 0.99) == 99
    assert stats.percentile([5], 0.99) == 5
    assert stats.spread([1e6, 3e6], MS) == {"p50": 1, "p99": 3, "max": 3, "n": 2}


def numbers(**changes: object) -> dict:
    nothing = stats.spread([], 1)
    return {
        "busy": 0.99, "switching": 0.001, "tenant_busy": [0.25, 0.74], "tenant_kernels_s": [250.0, 740.0],
        "share_error_1s": 1.0, "share_error_10s": 0.2, "idle_with_waiters": 0.001, "wake_to_lease_ms": nothing,
        "first_launch_held_ms": nothing, "latency_ms": nothing, "reclaim_ms": nothing, "switches_s": 50.0,
        "arbiter_cpu": 0.01, "load": {"busy": 0.2, "burning": [], "cores": 2}, **changes,
    }  # fmt: skip


def states(cases: dict, name: str) -> dict[str, str]:
    return {verdict.target: verdict.state for verdict in judge.judge(cases, BY_NAME[name], cases[name, "gpushare"][0])}


def test_targets():
    alone = {("alone", "none"): [numbers(busy=1.0, tenant_kernels_s=[10000.0])]}
    good = states({**alone, ("25-75", "gpushare"): [numbers()]}, "25-75")
    assert set(good.values()) == {"ok"}
    assert len(good) == 4
    bad = numbers(share_error_1s=3.1, share_error_10s=1.1, busy=0.97, idle_with_waiters=0.006)
    assert set(states({**alone, ("25-75", "gpushare"): [bad]}, "25-75").values()) == {"missed"}


def test_latencies_are_judged_while_a_core_is_free():
    lone = numbers(latency_ms={"p50": 2, "p99": 2.5, "max": 3, "n": 100})
    full = {"busy": 0.5, "burning": ["a", "b"], "cores": 2}
    for load_, p99, state in (
        (numbers()["load"], 5.59, "ok"),
        (numbers()["load"], 5.61, "missed"),
        (full, 9, "reported"),
    ):
        late = {"p50": 3, "p99": p99, "max": p99, "n": 100}
        case = numbers(latency_ms=late, wake_to_lease_ms={**late, "p99": p99 - 2.5}, load=load_)
        cases = {("alone-requests", "none"): [lone], ("inference-0.1", "gpushare"): [case]}
        found = states(cases, "inference-0.1")
        assert (found["request p99"], found["wake to lease, p99"]) == (state, state)


def test_overhead_is_held_against_the_noise():
    def verdict(bare: list[float], ours: list[float]) -> str:
        cases = {
            ("alone", system): [numbers(tenant_kernels_s=[rate]) for rate in rates]
            for system, rates in (("none", bare), ("gpushare", ours))
        }
        found = judge.overhead(cases)
        assert found is not None
        return found.state

    assert verdict([10000, 10001, 9999], [9995, 9996, 9994]) == "ok"
    assert verdict([10000, 10001, 9999], [9900, 9901, 9899]) == "missed"
    assert verdict([10000, 9800, 9999], [9900, 9901, 9899]) == "ok"
    assert judge.overhead({}) is None


def test_the_curve_of_d_is_published_and_not_judged(tmp_path):
    cases = {("alone", "none"): [numbers(busy=1.0)]}
    latency = {"p50": 3, "p99": 4, "max": 5, "n": 100}
    for workload in WORKLOADS:
        if workload.of_curve:
            cases[workload.name, "gpushare"] = [numbers(busy=0.5, latency_ms=latency)]
    assert len(cases) > 5
    facts = {"machine": "m", "date": "d", "commit": "c", "command": "x", "minutes": 1}
    table = report.write(tmp_path, "name", facts, cases, ["one failed"]).read_text()
    assert report.verdicts(cases) == []
    assert [line.split(" |")[0] for line in table.splitlines() if line.startswith("| ") and " ms |" in line[:12]] == [
        "| 0.1 ms", "| 0.25 ms", "| 0.5 ms", "| 1 ms", "| 2 ms", "| 4 ms",
    ]  # fmt: skip
    assert "- one failed" in table
    picture = ElementTree.parse(tmp_path / "name.svg").getroot()
    assert len([node for node in picture.iter() if node.tag.endswith("polyline")]) == 2


def test_a_machine_that_is_full_is_noticed():
    before = load.Snapshot(1000, 500, {1: ("a", 100), 2: ("b", 0)})
    found = load.between(before, load.Snapshot(1200, 500, {1: ("a", 200), 2: ("b", 20), 3: ("c", 80)}))
    assert found["busy"] == 1
    assert load.crowded(found)
    assert not load.crowded({"busy": 0.5, "burning": ["a"], "cores": 2})
    assert load.crowded({"busy": 0.5, "burning": ["a", "b"], "cores": 2})


def test_a_plot_without_numbers_says_so():
    text = plot.svg({}, {"machine": "a & b < c", "date": "d", "commit": "c", "command": "x"})
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text.count("not measured") == 3
