"""What lending, taking back and a launch cost. Device time comes from the simulator's books, never from the
interposer."""

import json
import statistics
import subprocess
import time

from measures import p99, spread
from run.running import SPIN, Daemon
from run.waiting import until

from gpushare import paths

KERNEL_NS = 300_000


def bare(node: Daemon, *arguments: str) -> list[str]:
    return ["env", f"GPUSHARE_SIM_DIR={node.sim_dir}", f"LD_LIBRARY_PATH={paths.SIM_LIB_DIR}", str(SPIN), *arguments]


def test_borrower_takes_what_is_idle(node: Daemon, report) -> None:
    owner, borrower = node.spin("2GiB", "75%"), node.spin("2GiB", "25%")
    reached, whole = [], []
    try:
        borrower.tell(f"run {KERNEL_NS}")
        for _ in range(10):
            owner.tell(f"run {KERNEL_NS}")
            time.sleep(0.4)
            owner.tell("idle")
            at = time.monotonic()
            time.sleep(0.1)
            before, start = node.busy(borrower.pid)[0], time.monotonic()
            reached.append(start - at)
            time.sleep(0.3)
            whole.append((node.busy(borrower.pid)[0] - before) / 1e9 / (time.monotonic() - start))
    finally:
        owner.close()
        borrower.close()
    got = statistics.median(whole)
    report(
        "borrower's share from 100 ms after the owner went idle",
        f"{100 * got:.1f} % of the device (median of 10, each over 300 ms)",
        "the whole device",
        ">= 95 %",
        got >= 0.95,
    )


def test_reclaim(node: Daemon, report) -> None:
    """Measures from the owner's first launch to its first lease, by the arbiter's events."""
    owner, borrower = node.spin("2GiB", "75%"), node.spin("2GiB", "25%")
    waits = []
    try:
        borrower.tell(f"run {KERNEL_NS}")
        handle = {
            grant["time_milli"]: grant for grant in (g["devices"][0] | {"id": g["id"]} for g in node.client.grants())
        }
        grant = handle[750]["id"]
        for _ in range(60):
            time.sleep(0.12)
            after = node.client.call("GET", "/v1/events")["after"]
            owner.tell(f"run {KERNEL_NS}")
            events = until(
                lambda after=after: [
                    event
                    for event in node.client.call("GET", f"/v1/events?after={after}")["events"]
                    if event["kind"] == "lease" and event["grant"] == grant
                ],
                "the lease event",
                5,
            )
            waits.append(events[0]["value_ns"] / 1e6)
            owner.tell("idle")
    finally:
        owner.close()
        borrower.close()
    bound = 2 + KERNEL_NS / 1e6 + 1
    report(
        "reclaim: owner's wake to its lease",
        spread(waits),
        f"2 ms in flight + kernel {KERNEL_NS / 1e6} ms + 1 ms",
        f"p99 <= {bound:.1f} ms",
        p99(waits) <= bound,
    )


def test_launch_overhead(node: Daemon, report) -> None:
    """5 us kernels back to back, bare and under a grant in alternating pairs: kernels per second."""
    arguments = ("--kernel-ns", "5000", "--seconds", "1.5")

    def kernels(command: list[str]) -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout.splitlines()[-1])["kernels"])

    shared_command = node.run("1GiB", "100%", SPIN, *arguments)
    pairs = [(kernels(bare(node, *arguments)), kernels(shared_command)) for _ in range(8)]
    loss = statistics.median(1 - shared / alone for alone, shared in pairs)
    spread = [100 * (1 - shared / alone) for alone, shared in pairs]
    report(
        "launch overhead, 5 us kernels back to back",
        f"{100 * loss:+.2f} % (median of {len(pairs)} pairs, {min(spread):+.2f} to {max(spread):+.2f})",
        "the same program on the bare simulated driver",
        "<= 1 %",
        loss <= 0.01,
    )
