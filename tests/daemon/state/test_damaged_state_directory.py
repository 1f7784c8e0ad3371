"""With its state directory in any condition, the daemon starts, adopts living grants, goes on deciding, and reports the
condition."""

import contextlib
import os
import random
import sqlite3
import subprocess
from contextlib import closing

import pytest
from run.running import GPUSHARE, SPIN, Tenant
from run.waiting import until

from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.errors import FailedError, RefusedError


def change(daemon, *statements):
    with closing(sqlite3.connect(daemon.layout.ledger)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def doctor(daemon):
    [found] = [line for line in daemon.cli_here("doctor").stdout.splitlines() if " ledger " in line]
    return found


def metric(daemon, name):
    return float(daemon.client.text("/metrics").split(f"\n{name} ")[1].split()[0])


def test_a_bad_row_is_set_aside_and_reported(fresh):
    daemon, client = fresh, fresh.client
    assert client.node()["ledger"] == {
        "healthy": True,
        "reason": "",
        "since_ns": None,
        "waiting": 0,
        "lost": 0,
        "set_aside": 0,
        "damaged": [],
    }
    assert doctor(daemon).startswith("ok ")
    _, living = daemon.join()
    _, other = daemon.join()
    ended = [client.create(memory="1GiB", time="1%")["id"] for _ in range(2)]
    ended.append(daemon.join()[1])
    for grant in ended:
        client.release(grant)
    daemon.written()
    daemon.kill()
    change(
        daemon,
        f"UPDATE grants SET state = '{{\"life\":' WHERE id IN ('{other}', '{ended[0]}')",
        f"UPDATE grants SET state = CAST(X'FF' AS TEXT) WHERE id = '{ended[1]}'",
        "INSERT INTO devices VALUES ('GPU-odd', '{', 9000000000000000000)",
        *2
        * (
            "INSERT INTO periods (run, grant_id, tenant, device, from_ns, to_ns, granted_ns, used_ns, busy_ns,"
            " borrowed_ns, lent_ns, waited_ns, memory_bytes, memory_peak_bytes)"
            f" SELECT 1, '{ended[2]}', 'default', id, 1, 9e18, 9223372036854775807, 9223372036854775807, -1,"
            " 9223372036854775807, 0, 9223372036854775807, 0, 0 FROM devices",
        ),
    )
    daemon.start()
    assert client.grant(living)["phase"] == "active"
    found = {grant["id"] for grant in client.grants(ended=True)}
    assert ended[2] in found
    assert not found & {other, *ended[:2]}
    assert client.grant(ended[2])["devices"][0]["leased_ns"] == (1 << 62) - 1
    assert client.call("GET", "/v1/waits")
    assert client.node()["ledger"]["set_aside"] == 4
    assert "4 rows set aside" in doctor(daemon)
    assert sorted(daemon.rows("SELECT source FROM quarantine")) == [
        ("devices",),
        ("grants",),
        ("grants",),
        ("grants",),
    ]


@pytest.mark.promise("ledger-survives")
def test_numbers_of_a_tenant_that_no_ledger_takes(fresh):
    daemon, client = fresh, fresh.client
    liar, lying = daemon.join()
    other, _ = daemon.join()
    with UsagePage.open(daemon.layout.grants / lying / "self" / "usage") as page:
        words = page.pointer.slot[0].device[0]
        words.memory_bytes = words.busy_ns = words.wait_ns = (1 << 64) - 1
        other.kill()  # its end writes a period of every grant
        other.wait()
        until(lambda: [grant["id"] for grant in client.grants()] == [lying], "it ended")
        words.memory_bytes = words.busy_ns = words.wait_ns = (1 << 63) + 5
    liar.kill()
    liar.wait()
    until(lambda: client.grants() == [], "it ended")
    assert len(client.grants(ended=True)) == 2
    daemon.kill()
    daemon.start()
    assert len(client.grants(ended=True)) == 2


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("empty", "cut", "directory", "missing")]


@pytest.mark.parametrize("kind", ["rubbish", "torn page", *SLOW])
def test_a_damaged_ledger_does_not_stop_the_node(fresh, kind):
    daemon, client = fresh, fresh.client
    child, living = daemon.join()
    run = client.node()["epoch"]
    daemon.kill()
    path = daemon.layout.ledger
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [page] = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'periods'").fetchone()
    content = bytearray(path.read_bytes())
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "rubbish":
            path.write_bytes(random.Random(1).randbytes(len(content)))
        case "torn page":
            content[(page - 1) * 4096 : page * 4096] = bytes(4096)
            path.write_bytes(content)
        case "directory":
            path.unlink()
            path.mkdir()
        case "missing":
            path.unlink()
    daemon.start()
    assert client.grant(living)["phase"] == "active"
    if kind == "torn page":  # a page of a table that the start does not read
        until(lambda: client.node()["ledger"]["damaged"], "found")
    if kind not in ("empty", "missing"):
        assert client.node()["epoch"] > run
        [aside] = client.node()["ledger"]["damaged"]
        assert aside in doctor(daemon)
    assert client.node()["ledger"]["healthy"]
    again, new = daemon.join()
    again.kill()
    again.wait()
    until(lambda: new not in {grant["id"] for grant in client.grants()}, "ended")
    assert client.grant(new)["phase"] == "released"
    assert daemon.rows(f"SELECT COUNT(*) FROM periods WHERE grant_id = '{new}'") != [(0,)]
    child.kill()
    child.wait()
    until(lambda: client.grants() == [], "ended")
    assert daemon.rows(f"SELECT phase FROM grants WHERE id = '{living}'") == [("released",)]


@pytest.fixture
def on_small_disk(make_daemon, tmp_path):
    """A daemon whose state directory is a 1 MiB disk; what is kept on tmpfs is elsewhere."""
    daemon = make_daemon()
    mounts = [daemon.state_dir, daemon.layout.run, daemon.layout.cdi]
    made = []
    try:
        for path, size in zip(mounts, ("1m", "64m", "1m"), strict=True):
            path.mkdir(mode=0o755, exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "none", path]
            if subprocess.run(command, check=False, capture_output=True).returncode:
                pytest.skip("needs the right to mount")
            made.append(path)
        daemon.log = tmp_path / "daemon.log"
        yield daemon
    finally:
        daemon.end()
        for path in reversed(made):
            subprocess.run(["umount", "-l", path], check=False)


@pytest.mark.promise("ledger-survives")
def test_a_full_disk_from_start_to_end(on_small_disk):
    daemon, client = on_small_disk.start(), on_small_disk.client
    _, first = daemon.join()
    ballast = daemon.state_dir / "ballast"
    with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(256))
    child, second = daemon.join()
    third = client.create(memory="1GiB", time="1%")["id"]
    for _ in range(30):
        client.release(client.create(memory="1GiB", time="1%")["id"])
    ledger = until(lambda: (found := client.node()["ledger"])["reason"] and found, "the disk is full")
    assert "full" in ledger["reason"]
    assert ledger["waiting"] > 30
    assert doctor(daemon).startswith("missing ")
    assert metric(daemon, "gpushare_ledger_healthy") == 0
    assert metric(daemon, "gpushare_ledger_waiting_rows") > 30
    child.kill()
    child.wait()
    until(lambda: client.grant(second)["phase"] == "released", "ended")
    daemon.kill()
    daemon.start()
    assert {grant["id"] for grant in client.grants()} == {first, third}
    assert client.grant(first)["phase"] == "active"
    assert client.grant(second)["phase"] == "released"
    ballast.unlink()
    until(lambda: client.node()["ledger"]["healthy"], "written")
    assert metric(daemon, "gpushare_ledger_healthy") == 1
    assert daemon.rows("SELECT COUNT(*), SUM(ended_ns IS NULL) FROM grants") == [(33, 2)]
    assert daemon.rows(f"SELECT COUNT(*) FROM periods WHERE grant_id = '{second}'") != [(0,)]


def without_room(directory, what):
    """Takes the room that is left on a tmpfs; returns what gives it back. Its users go on meanwhile: the kernel refuses
    less than they have by then."""

    def sized(size, inodes):
        option = f"size={size}" if what == "bytes" else f"nr_inodes={inodes}"
        return subprocess.run(["mount", "-o", f"remount,{option}", directory]).returncode == 0

    def taken():
        now = os.statvfs(directory)
        return sized((now.f_blocks - now.f_bfree) * now.f_frsize, now.f_files - now.f_ffree)

    before = os.statvfs(directory)
    until(taken, "no room is left")
    return lambda: sized(before.f_blocks * before.f_frsize, before.f_files)


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_restart_while_there_is_no_room_for_files(on_small_disk, what):
    daemon, client = on_small_disk.start(), on_small_disk.client
    child, _ = daemon.join()
    started = client.create(memory="1GiB", time="10%")
    client.create(memory="1GiB", time="10%", ttl_seconds=600)
    container = subprocess.Popen(["sleep", "1000"])
    try:
        client.call("POST", f"/v1/hooks/create-runtime?grant={started['id']}", {"pid": container.pid})
        before = {grant["id"]: grant["phase"] for grant in client.grants()}
        free = [without_room(path, what) for path in (daemon.layout.run, daemon.layout.cdi)]
        with pytest.raises(FailedError, match="No space left"):
            client.create(memory="1GiB", time="1%")
        assert not [name for name in os.listdir(daemon.layout.cdi) if name.endswith(".tmp")]
        daemon.kill()
        daemon.start()
        assert {grant["id"]: grant["phase"] for grant in client.grants()} == before
        assert (child.poll(), container.poll()) == (None, None)
        for give in free:
            give()
        new = client.create(memory="1GiB", time="1%")["id"]
        assert os.path.ismount(daemon.layout.grants / new / "self")
    finally:
        container.kill()
        container.wait()


def test_no_process_and_no_grant_dies_of_a_full_file_system_that_grants_share(on_small_disk):
    daemon = on_small_disk.patch("from gpushare.inject import mounts", "mounts.possible = lambda place: False").start()
    client = daemon.client
    kept = client.create(memory="2GiB", time="50%", keep=True)["id"]
    spins = [
        Tenant([*GPUSHARE, "run", "--socket", str(client.path), "--grant", kept, "--", str(SPIN)]) for _ in range(2)
    ]
    try:
        own = daemon.layout.grants / client.create(memory="1GiB", time="1%")["id"] / "self"
        free = without_room(daemon.layout.run, "bytes")
        with UsagePage.open(own / "usage") as usage, LimitsPage.open(own / "limits") as limits:
            with pytest.raises(RefusedError, match="no room for another process"):
                for pid in range(1000):
                    usage.claim(limits, pid + 2)
            assert not usage.torn
        for spin in spins:
            spin.tell("run 500000")  # together, so both write what they were charged
        until(lambda: min(daemon.busy(*(spin.pid for spin in spins))) > 200_000_000, "both work")
        assert [spin.process.poll() for spin in spins] == [None, None]
        free()
    finally:
        for spin in spins:
            spin.close()
