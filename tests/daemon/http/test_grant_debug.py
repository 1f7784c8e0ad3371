"""`gpushare grant debug`, GPUSHARE_DEBUG and the probe: the recent actions of a grant's process, for debugging."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare import paths
from gpushare._native import ffi, lib
from gpushare.client import Client
from gpushare.errors import NotFoundError

MIB = 1 << 20


def texts(client: Client, grant: str) -> list[str]:
    return [event["text"] for process in client.debug(grant)["processes"] for event in process["events"]]


@pytest.fixture
def spins(daemon):
    """Starts gpushare-spin in a share; returns the tenant and its grant."""
    made: list[Tenant] = []

    def start(memory: str = "512MiB", env: dict[str, str] | None = None) -> tuple[Tenant, str]:
        made.append(Tenant(daemon.run(memory, "40%", SPIN, gpu="0"), env={**daemon.env, **(env or {})}))
        (grant,) = [one["id"] for one in daemon.client.grants() if made[-1].pid in one["processes"]]
        return made[-1], grant

    yield start
    for tenant in made:
        tenant.close()


def test_a_grant_shows_its_words_and_its_last_events(daemon, client, spins):
    tenant, grant = spins()
    refused = tenant.tell("alloc 1GiB")
    assert refused["ok"] is False
    found = client.debug(grant)
    (process,) = found["processes"]
    assert (found["grant"], process["pid"], process["slot"]) == (grant, tenant.pid, 0)
    assert process["devices"][0]["memory_bytes"] == daemon.books()["bytes"]
    answer = [event["text"] for event in process["events"]]
    assert answer[0] == "joined the grant in slot 0, generation 1"
    assert answer[1].startswith(f"a context was made, charged {16 * MIB}: ")
    assert f"out of memory: {1 << 30} bytes were asked for, the grant has " in answer[-1]
    text = daemon.cli("grant", "debug", grant).stdout
    assert f"process {tenant.pid}  slot 0" in text
    assert f"memory    device 0: {answer[-1]}" in text
    assert json.loads(daemon.cli("grant", "debug", grant, "--json").stdout)["grant"] == grant


def test_leases_that_come_and_go_are_events(client, spins):
    (one, grant), (other, _) = spins(), spins()
    for tenant in (one, other):
        tenant.tell("run 1000000")
    kinds = ("waited ", "the lease was taken back", "drained for lease word")
    until(lambda: all(any(kind in text for text in texts(client, grant)) for kind in kinds), "lease events", 20)


def test_the_ring_keeps_the_newest_events_and_begins_anew_with_the_slot(client, spins):
    tenant, grant = spins()
    for _ in range(100):
        tenant.tell("alloc 1GiB")
    kept = texts(client, grant)
    assert len(kept) == lib.GS_TRACE_EVENTS
    assert all(text.startswith("out of memory") for text in kept)


def test_an_unused_grant_has_leases_and_no_process(client):
    grant = client.create(memory="512MiB", time="10%")["id"]
    found = client.debug(grant)
    assert [lease["held"] for lease in found["leases"]] == [False]
    assert found["processes"] == []


def test_a_grant_that_ended_is_refused(client):
    grant = client.create(memory="512MiB", time="10%")["id"]
    client.release(grant)
    with pytest.raises(NotFoundError, match="has ended"):
        client.debug(grant)


def test_a_process_that_lies_in_its_ring_harms_only_its_own_story(daemon, client, spins):
    _, grant = spins()
    usage = daemon.layout.grants / grant / "self" / "usage"
    ring = ffi.offsetof("struct gs_usage", "trace")
    with open(usage, "r+b") as page:
        page.seek(ring)
        page.write(struct.pack("<Q", (1 << 64) - 1))
        page.seek(ring + ffi.offsetof("struct gs_trace_ring", "event"))
        page.write(
            struct.pack("<QIiQQ", (1 << 64) - 1, 3, -5, (1 << 64) - 1, 7) * 30
            + struct.pack("<QIiQQ", 0, 999, 0, 0, 0) * 33
        )
    events = client.debug(grant)["processes"][0]["events"]
    assert len(events) == 30
    assert all(event["device"] is None and event["at_ns"] <= 2 * events[0]["at_ns"] for event in events)
    assert daemon.cli("grant", "debug", grant).returncode == 0


def test_debug_lines_are_printed_for_the_areas_asked_for(spins):
    tenant, _ = spins(env={"GPUSHARE_DEBUG": "memory,gatekeeper"})
    tenant.tell("alloc 1GiB")
    tenant.process.stdin.close()
    lines = [line for line in tenant.process.stderr.read().splitlines() if line.startswith("gpushare: [")]
    assert [line.split()[3] for line in lines][:2] == ["memory:", "memory:"]
    assert not [line for line in lines if " process: " in line or " gate: " in line]
    assert "out of memory" in "".join(lines)


def test_the_probe_is_in_the_library():
    notes = subprocess.run(["readelf", "-n", paths.INTERPOSER], capture_output=True, text=True, check=True).stdout
    if not list(Path("/usr/include").glob("**/sys/sdt.h")):
        pytest.skip("built without sys/sdt.h")
    assert "Provider: gpushare" in notes
    assert "Name: trace" in notes


OVERWRITES = """
import ctypes
libc, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
variable = ctypes.create_string_buffer(b"GPUSHARE_DEBUG=memory")
assert libc.putenv(variable) == 0  # the buffer itself is the environment's from now on
context, address = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
ctypes.memset(variable, ord("x"), len(variable) - 1)
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 40)) == 2
"""


def test_a_program_may_overwrite_its_environment(daemon):
    command = daemon.run("512MiB", "40%", sys.executable, "-c", OVERWRITES)
    done = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"out of memory: {1 << 40} bytes were asked for" in done.stderr
