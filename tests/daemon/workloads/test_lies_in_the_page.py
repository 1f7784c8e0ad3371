"""Whatever a tenant writes into its page, the daemon answers and all its numbers stay plausible."""

import os
import random
import signal
import time

import pytest
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare.binding.pages import UsagePage
from gpushare.inject import grantdir

MOST = 2**63 - 1
GIB = 1 << 30
VALUES = (0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
HEADER = ("state", "generation", "pid", "own_pid", "pid_namespace")
LONG_WORDS = (
    *("memory_bytes", "memory_pending", "memory_growing", "busy_ns", "queue_end_ns", "launches", "wait_ns"),
    *("collectives", "cut"),
)
WORDS = (*LONG_WORDS, "waiting", "inflight", "drained", "flags")


def write(row, name, value):
    signed = name in ("pid", "own_pid")
    bits = 64 if name in LONG_WORDS else 32
    value %= 1 << bits
    setattr(row, name, value - (1 << bits) if signed and value >> (bits - 1) else value)


def sane(daemon, liar, honest, capacity, began):
    rows = {grant["id"]: grant["devices"][0] for grant in daemon.client.grants()}
    numbers = [value for row in rows.values() for value in row.values() if isinstance(value, int)]
    assert all(0 <= value <= MOST for value in numbers)
    assert rows[liar]["memory_bytes"] <= rows[liar]["memory_peak_bytes"] <= capacity
    assert rows[liar]["busy_ns"] <= time.monotonic_ns() - began + 10**9
    assert (rows[honest]["memory_bytes"], rows[honest]["busy_ns"], rows[honest]["marked"]) == (1000, 0, 0)
    return rows[liar]


def metric(daemon, name, grant):
    [line] = [
        line
        for line in daemon.client.text("/metrics").splitlines()
        if line.startswith(name + "{") and f'"{grant}"' in line
    ]
    return float(line.rpartition(" ")[2])


def joined_pair(daemon):
    (child, liar), (neighbour, honest) = daemon.join(), daemon.join()
    neighbour.stdin.write("hold 1000\n")
    assert neighbour.stdout.readline() == "held\n"
    return child, liar, honest


@pytest.mark.promise("claims-are-bounded")
def test_any_number_in_any_word(daemon):
    began = time.monotonic_ns()
    _, liar, honest = joined_pair(daemon)
    capacity = daemon.client.devices()[0]["capacity"]["memory"]
    rng = random.Random(1)
    with UsagePage.open(grantdir.self_dir(daemon.layout, liar) / "usage") as page:
        slot = page.pointer.slot[0]
        for name in (*HEADER, *WORDS):
            row = slot if name in HEADER else slot.device[0]
            for value in (*VALUES, rng.getrandbits(64)):
                write(row, name, value)
                shown = sane(daemon, liar, honest, capacity, began)
            daemon.client.debug(liar)
            write(row, name, 0)
        assert shown["marked"] == 1
        assert shown["memory_bytes"] == GIB  # its limit
        assert metric(daemon, "gpushare_grant_marked_processes", liar) == 1
        assert "1 processes say what cannot be" in daemon.cli_here("grant", "show", liar).stdout
        for name in ("gpushare_grant_busy_seconds_total", "gpushare_grant_memory_bytes"):
            assert metric(daemon, name, liar) <= capacity
    notified = daemon.client.call("GET", f"/v1/events?grant={liar}&kind=lie")["events"]
    assert {"state", "generation", "pid", "memory", "busy", "waiting"} <= {event["word"] for event in notified}
    assert len({(event["word"], event["pid"]) for event in notified}) == len(notified)
    assert "says what cannot be" in daemon.cli_here("events", "--grant", liar, "--kind", "lie").stdout
    assert not daemon.client.call("GET", f"/v1/events?grant={honest}&kind=lie")["events"]
    daemon.client.release(liar)
    [ended] = [grant for grant in daemon.client.grants(ended=True) if grant["id"] == liar]
    assert ended["devices"][0]["busy_ns"] <= time.monotonic_ns() - began + 10**9


def test_lies_outlive_neither_the_daemon_nor_their_process(fresh):
    """A daemon that is killed and restarted with lies in a page adopts the grant and believes none of them."""
    began = time.monotonic_ns()
    child, liar, honest = joined_pair(fresh)
    capacity = fresh.client.devices()[0]["capacity"]["memory"]
    [pid] = fresh.client.grant(liar)["processes"]
    with UsagePage.open(grantdir.self_dir(fresh.layout, liar) / "usage") as page:
        slot = page.pointer.slot[0]
        for name in WORDS:
            write(slot.device[0], name, 2**64 - 1)
        slot.state = 0  # denies its own slot
        slot.pid = 1
        page.pointer.slot[1].state = 1  # and blames another process
        page.pointer.slot[1].device[0].memory_bytes = 2**63
        until(lambda: sane(fresh, liar, honest, capacity, began)["marked"] == 1)
        fresh.kill()
        fresh.start()
        shown = sane(fresh, liar, honest, capacity, began)
        assert (shown["marked"], shown["memory_bytes"]) == (1, capacity)
        assert fresh.client.grant(liar)["processes"] == [pid]
        child.stdin.write("fork\n")
        assert child.stdout.readline().split()[:3] == ["joined", liar, "1"]
        until(lambda: fresh.client.grant(liar)["processes"] == [pid])
        assert page.pointer.slot[1].device[0].memory_bytes == 0
    assert fresh.terminate() == 0


def test_who_does_not_lie_is_believed_whatever_happens_to_it(fresh):
    """Tenants are stopped with work on the device, the daemon is killed, and kernels are short and long."""
    tenants = [Tenant(fresh.run("1GiB", "25%", SPIN, "--alloc", "512M", gpu="0"), fresh.env) for _ in range(2)]

    def truthful():
        assert not fresh.client.call("GET", "/v1/events?kind=lie")["events"]
        assert [grant["devices"][0]["marked"] for grant in fresh.client.grants()] == [0, 0]

    def works(tenant):
        [before] = [g["devices"][0]["busy_ns"] for g in fresh.client.grants() if tenant.pid in g["processes"]]
        [now] = until(
            lambda: [
                busy
                for g in fresh.client.grants()
                if tenant.pid in g["processes"] and (busy := g["devices"][0]["busy_ns"]) > before + 30_000_000
            ]
        )
        assert now > before

    try:
        for kernel_ns in (20_000, 5_000_000, 300_000_000):
            for tenant in tenants:
                tenant.tell(f"run {kernel_ns}")
            works(tenants[0])
            os.kill(tenants[0].pid, signal.SIGSTOP)
            works(tenants[1])
            truthful()
            os.kill(tenants[0].pid, signal.SIGCONT)
            works(tenants[0])
            truthful()
            fresh.kill()
            fresh.start()
            works(tenants[1])
            truthful()
    finally:
        for tenant in tenants:
            tenant.kill()


@pytest.mark.promise("page-names-no-processes")
@pytest.mark.slow
def test_pages_of_random_bytes(fresh):
    began = time.monotonic_ns()
    _, liar, honest = joined_pair(fresh)
    capacity = fresh.client.devices()[0]["capacity"]["memory"]
    rng = random.Random(2)
    with UsagePage.open(grantdir.self_dir(fresh.layout, liar) / "usage") as page:
        slot = page.pointer.slot[0]
        for _ in range(500):
            for name in rng.sample(WORDS, 4):
                write(slot.device[0], name, rng.getrandbits(64) >> rng.randrange(64))
            name = rng.choice(HEADER)
            write(slot, name, rng.getrandbits(32))
            sane(fresh, liar, honest, capacity, began)
