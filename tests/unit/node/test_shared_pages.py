import os
import stat
import struct
import subprocess
import sys

import pytest
from pages.madepages import limits_page, usage_page
from pages.pagewords import device_limits, memory_bytes
from run.built import SUPPORT

from gpushare._native import ffi, lib
from gpushare.binding.page_words import DeviceLimits, GrantState, Slot
from gpushare.binding.pages import LIMITS_BYTES, MAX_SLOTS, USAGE_BYTES, LimitsPage, UsagePage
from gpushare.errors import FailedError, RefusedError, UsageError

GIB = 1 << 30
SUPPORTED = {**os.environ, "PYTHONPATH": str(SUPPORT)}
DEVICE = DeviceLimits(bytes(range(16)), 8 * GIB, 16 << 20, 250, 1000)


@pytest.fixture
def pages(tmp_path):
    with (
        limits_page(tmp_path / "limits", "g-1", [DEVICE]) as limits,
        usage_page(tmp_path / "usage", "g-1") as usage,
    ):
        yield limits, usage


def test_what_was_written_is_read_back_by_another_mapping(tmp_path, pages):
    with LimitsPage.open(tmp_path / "limits", writable=False) as seen:
        assert seen.grant == "g-1"
        assert device_limits(seen) == [DEVICE]
        assert seen.state is GrantState.RESERVED
        pages[0].state = GrantState.ACTIVE
        changed = DeviceLimits(DEVICE.uuid, 4 * GIB, DEVICE.context_bytes, 500, 600)
        pages[0].set_device(0, changed)
        assert seen.state is GrantState.ACTIVE
        assert device_limits(seen) == [changed]
        assert pages[0].renew_daemon_epoch() == 2 == seen.daemon_epoch


def test_modes_are_as_asked_whatever_the_umask_states(tmp_path):
    old = os.umask(0o077)
    try:
        limits_page(tmp_path / "limits", "g", [DEVICE]).close()
        usage_page(tmp_path / "usage", "g").close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "limits").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "usage").stat().st_mode) == 0o666


def test_a_page_is_never_made_over_another_file(tmp_path, pages):
    with pytest.raises(OSError, match="File exists"):
        limits_page(tmp_path / "limits", "g-2", [DEVICE])
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="File exists"):
        usage_page(tmp_path / "link", "g-2")
    assert not (tmp_path / "elsewhere").exists()


def offset(field):
    return {"magic": 0, "version": 4, "size": 8, "count": 12, "grant": 16}[field]


@pytest.mark.promise("page-misleads-nobody")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", 0, "magic"),
        ("magic", lib.GS_USAGE_MAGIC, "magic"),
        ("version", 1, "version 1, this gpushare speaks 8"),
        ("size", 4096, "says 4096 bytes"),
        ("count", 0, "0 devices"),
        ("count", 17, "17 devices"),
    ],
)
def test_a_foreign_or_corrupt_limits_page_is_refused(tmp_path, pages, field, value, message):
    with open(tmp_path / "limits", "r+b") as file:
        file.seek(offset(field))
        file.write(struct.pack("=I", value))
    with pytest.raises(FailedError, match=message):
        LimitsPage.open(tmp_path / "limits")


@pytest.mark.promise("page-misleads-nobody")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("magic", lib.GS_LIMITS_MAGIC, "magic"), ("version", 0, "version 0"), ("count", 5, "5 slots")],
)
def test_a_foreign_or_corrupt_usage_page_is_refused(tmp_path, pages, field, value, message):
    with open(tmp_path / "usage", "r+b") as file:
        file.seek(offset(field))
        file.write(struct.pack("=I", value))
    with pytest.raises(FailedError, match=message):
        UsagePage.open(tmp_path / "usage")


def test_a_page_without_a_grant_id_that_ends_is_refused(tmp_path, pages):
    with open(tmp_path / "usage", "r+b") as file:
        file.seek(offset("grant"))
        file.write(b"x" * 40)
    with pytest.raises(FailedError, match="no grant id"):
        UsagePage.open(tmp_path / "usage")


@pytest.mark.parametrize("size", [0, 100, LIMITS_BYTES - 1, LIMITS_BYTES + 1, USAGE_BYTES])
def test_a_file_of_another_size_is_refused(tmp_path, size):
    path = tmp_path / "limits"
    path.write_bytes(b"")
    os.truncate(path, size)
    with pytest.raises(FailedError, match=f"has {size} bytes"):
        LimitsPage.open(path)


def test_what_is_not_a_file_is_refused(tmp_path):
    with pytest.raises(FailedError, match="cannot open"):
        LimitsPage.open(tmp_path / "absent")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FailedError):
        LimitsPage.open(tmp_path / "fifo")


def clear(usage, index):
    """Clears a slot as gs_arbiter_slot_clear does."""
    usage.pointer.slot[index].state = lib.GS_SLOT_FREE
    usage.seats.seat[index].taken = 0


def test_slots_are_given_lowest_first_with_a_new_generation_each_time(pages):
    limits, usage = pages
    assert [usage.claim(limits, pid) for pid in (10, 11)] == [Slot(0, 1, 10), Slot(1, 1, 11)]
    assert limits.slots_high == 2
    clear(usage, 0)
    assert usage.claim(limits, 12) == Slot(0, 2, 12)
    assert limits.slots_high == 2
    assert list(usage.live_slots(limits)) == [Slot(0, 2, 12), Slot(1, 1, 11)]


def test_a_claimed_slot_starts_empty_whatever_was_written_before(pages):
    limits, usage = pages
    usage.pointer.slot[0].device[3].memory_bytes = 99
    slot = usage.claim(limits, 10)
    assert usage.usage(slot.index, 3).memory_bytes == 0


def test_a_full_grant_refuses_one_more_process(pages):
    limits, usage = pages
    for pid in range(MAX_SLOTS):
        usage.claim(limits, pid + 1)
    with pytest.raises(RefusedError, match="all 1024 process slots"):
        usage.claim(limits, 5000)


def test_memory_is_summed_over_live_slots_only(pages):
    limits, usage = pages
    for pid, size in ((10, 100), (11, 20), (12, 3)):
        slot = usage.claim(limits, pid)
        usage.pointer.slot[slot.index].device[0].memory_bytes = size
    clear(usage, 1)
    assert memory_bytes(usage, limits, 0) == 103


@pytest.mark.promise("page-names-no-processes")
def test_what_a_tenant_writes_frees_no_slot_and_takes_none(pages):
    limits, usage = pages
    usage.claim(limits, 10)
    first, second = usage.pointer.slot[0], usage.pointer.slot[1]
    first.state, first.generation, first.pid = lib.GS_SLOT_FREE, 77, 88
    second.state = lib.GS_SLOT_LIVE
    assert usage.claim(limits, 11) == Slot(1, 1, 11)
    assert list(usage.taken()) == [Slot(0, 1, 10), Slot(1, 1, 11)] == list(usage.live_slots(limits))


def test_a_slot_is_kept_for_whoever_had_it_before(tmp_path, pages):
    limits, usage = pages
    usage.claim(limits, 10)
    usage.pointer.slot[0].device[0].memory_bytes = 99
    with UsagePage.open(tmp_path / "usage") as again:
        again.keep(Slot(0, 1, 10), 5)
        again.keep(Slot(0, 3, 12), 5)
        again.keep(Slot(MAX_SLOTS, 3, 12), 5)
        assert list(again.taken()) == [Slot(0, 1, 10)]
        assert again.usage(0, 0).memory_bytes == 99
        assert again.claim(limits, 11) == Slot(1, 1, 11)


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1])
def test_no_number_of_a_page_is_larger_than_the_ledger_can_keep(pages, value):
    limits, usage = pages
    slot = usage.claim(limits, 10)
    words = usage.pointer.slot[slot.index].device[0]
    names = ("memory_bytes", "memory_pending", "busy_ns", "queue_end_ns", "launches", "wait_ns")
    for name in names:
        setattr(words, name, value)
    seen = usage.usage(slot.index, 0)
    assert {getattr(seen, name) for name in names} == {2**63 - 1}


def test_a_page_truncated_under_our_hands_reads_as_zeros_and_reports_it(tmp_path, pages):
    limits, usage = pages
    usage.claim(limits, 10)
    assert not usage.torn
    os.truncate(tmp_path / "usage", 4096)
    assert list(usage.live_slots(limits)) == [Slot(0, 1, 10)]  # within the remaining size
    assert usage.usage(900, 0).memory_bytes == 0
    assert usage.torn
    with pytest.raises(FailedError, match="not a usage page"):
        usage.check()
    assert not limits.torn


def test_a_bus_error_that_is_not_ours_still_ends_the_process(tmp_path):
    """The guard only handles truncation of the pages."""
    import signal
    import subprocess
    import sys

    program = (
        "import mmap, os, sys\n"
        "from pathlib import Path\n"
        "from pages.madepages import usage_page\n"
        "page = usage_page(Path(sys.argv[1]), 'g')\n"
        "f = open(sys.argv[2], 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); f.truncate(0)\n"
        "m[0]\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "usage"), str(tmp_path / "other")]
    assert subprocess.run(command, env=SUPPORTED, timeout=30).returncode == -signal.SIGBUS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"uuid": b"short"}, "16 bytes"),
        ({"memory_bytes": -1}, "not negative"),
        ({"guarantee_milli": 600, "limit_milli": 500}, "guarantee of 600"),
        ({"limit_milli": 1001}, "limit of 1001"),
    ],
)
def test_senseless_limits_are_refused(tmp_path, change, message):
    import dataclasses

    with pytest.raises(UsageError, match=message):
        limits_page(tmp_path / "limits", "g", [dataclasses.replace(DEVICE, **change)])
    assert not (tmp_path / "limits").exists()


@pytest.mark.parametrize(("grant", "devices"), [("", 1), ("x" * 40, 1), ("g", 0), ("g", 17)])
def test_a_page_that_cannot_be_made_leaves_no_file(tmp_path, grant, devices):
    with pytest.raises(FailedError):
        limits_page(tmp_path / "limits", grant, [DEVICE] * devices)
    assert not (tmp_path / "limits").exists()


def test_layout_is_the_one_other_processes_compiled():
    """Running tenants have these offsets compiled in: changing one requires a new GS_PAGE_VERSION."""
    assert (LIMITS_BYTES, USAGE_BYTES) == (2176, 2752576)
    assert ffi.sizeof("struct gs_slot") == 2240
    assert ffi.offsetof("struct gs_limits", "allocation_wait_ms") == 80
    assert ffi.offsetof("struct gs_device_limits", "lease") == 48
    assert ffi.offsetof("struct gs_device_limits", "residency") == 84
    assert ffi.offsetof("struct gs_limits", "grant") == 16, "gpushare/inject/grantdir.py reads it too"
    assert ffi.offsetof("struct gs_slot", "refusals") == 88
    assert ffi.offsetof("struct gs_slot", "sync_calls") == 128
    assert ffi.offsetof("struct gs_slot_device", "waiting") == 48
    assert ffi.offsetof("struct gs_slot_device", "memory_growing") == 80
    assert ffi.offsetof("struct gs_slot_device", "movable_bytes") == 88
    assert ffi.offsetof("struct gs_slot_device", "move") == 124
    assert ffi.sizeof("struct gs_join_reply") == 128


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")
def test_a_full_tmpfs_is_an_error_when_the_page_is_made_not_a_signal_later(tmp_path):
    code = (
        "import pathlib, sys; from pages import madepages; madepages.usage_page(pathlib.Path(sys.argv[1]), 'g', 65536)"
    )
    script = 'mount -t tmpfs -o size=16k tmpfs "$0" && exec "$1" -c "$2" "$0/usage"'
    command = ["unshare", "--mount", "sh", "-c", script, str(tmp_path), sys.executable, code]
    done = subprocess.run(command, env=SUPPORTED, capture_output=True, text=True, check=False)
    assert "No space left" in done.stderr, done.stderr
