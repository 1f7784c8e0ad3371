"""The ledger's sums: each device's time is used, idle, switching or missed, also across killed daemons; and changes to
its file are found."""

import json
import sqlite3
from contextlib import closing
from xml.etree import ElementTree

from run.waiting import until

from gpushare.ledger import verify

WALL = ("used_ns", "idle_ns", "switching_ns", "missed_ns")


def spent(client, **query):
    return client.usage(**query)["devices"]


def test_what_a_job_used_is_no_fault_while_the_idle_time_beside_it_waits(make_daemon, monkeypatch):
    """The rows of an ended grant are in the file before those of its device's idle time, by up to a minute."""
    monkeypatch.setattr(verify, "_LEAST_NS", 0)
    daemon = make_daemon().start()
    job = daemon.spin("1GiB", "60%", gpu="0")
    job.tell("run 500000")
    until(lambda: spent(daemon.client)["used_ns"] > 100_000_000, "some work")
    job.kill()
    until(lambda: not daemon.client.grants(), "it ends", 20)
    assert [row for row in daemon.rows("SELECT tenant, used_ns FROM periods") if row[0] == "default"]
    found = verify.verify(daemon.layout.ledger)
    assert found["ok"], found["fault"]


def test_time_adds_up_over_a_killed_daemon(make_daemon, tmp_path):
    daemon = make_daemon().start()
    client = daemon.client
    client.set_tenant("scav", {"weight": 0})
    tenants = [
        daemon.spin("1GiB", "60%", gpu="0"),
        daemon.spin("1GiB", "0", gpu="0", tenant="scav"),
        daemon.spin("1GiB", "30%", gpu="1"),
    ]
    try:
        for tenant in tenants:
            tenant.tell("run 500000")
        until(lambda: spent(client)["used_ns"] > 1_500_000_000, "some work", 60)
        before = spent(client)
        daemon.kill()
        daemon.start()
        until(lambda: spent(client)["used_ns"] > before["used_ns"] + 1_000_000_000, "and more", 60)
        tenants[0].tell("idle")
        until(lambda: client.usage(tenant="scav")["rows"][0]["scavenged_ns"] > 500_000_000, "what is left", 60)
    finally:
        for tenant in tenants:
            tenant.kill()
    until(lambda: not client.grants(), "the grants end", 20)
    found = client.usage()
    whole = found["devices"]
    assert whole["missed_ns"] > 0
    # Time lost when the daemon was killed counts as missed; otherwise rows end within a second of each other.
    assert abs(sum(whole[name] for name in WALL) - whole["wall_ns"]) < max(0.001 * whole["wall_ns"], 1_500_000_000)
    rows = {row["tenant"]: row for row in found["rows"]}
    assert set(rows) == {"default", "scav"} and rows["scav"]["guaranteed_ns"] == 0
    # Kernels take 0.5 ms; a scavenging tenant is owed nothing.
    for row in rows.values():
        assert row["busy_ns"] / 600_000 < row["launches"] < row["busy_ns"] / 300_000
        assert row["waited_owed_ns"] + row["waited_limit_ns"] <= row["waited_ns"]
    assert rows["scav"]["waited_owed_ns"] == 0 < rows["scav"]["waited_ns"]
    by_device = client.usage(by="device")["rows"]
    assert len({row["device"] for row in by_device}) == 2
    for by in ("grant", "device", "hour", "charge"):
        assert sum(row["busy_ns"] for row in client.usage(by=by)["rows"]) == sum(
            row["busy_ns"] for row in found["rows"]
        )
    check_replay(daemon, found["rows"], tmp_path / "other.toml")
    check_picture(daemon, tmp_path / "usage.svg")
    assert client.usage(until=1)["rows"] == [] and client.usage(tenant="sca")["rows"] == []
    assert daemon.terminate() == 0
    path = daemon.layout.ledger
    done = daemon.cli("usage", "verify", "--file", path)
    assert done.returncode == 0 and "no daemon from" in done.stdout, done.stderr
    with closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.execute("UPDATE periods SET borrowed_ns = borrowed_ns + 1 WHERE id = 3")
    done = daemon.cli("usage", "verify", "--file", path)
    assert done.returncode == 1 and "periods: row 3 is not what was written" in done.stderr


def check_picture(daemon, file):
    done = daemon.cli("usage", "--format", "svg", "--output", file)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    answer = [element.text for element in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert answer[0] == "What tenants used of the simulated devices" and {"default", "scav"} < set(answer)


def check_replay(daemon, rows, other):
    """Checks a replay: past use matches the records; a new limit makes its tenant wait and devices idle."""
    other.write_text("[tenants.scav]\nweight = 0\n[tenants.default]\ntime_limit = '20%'\n")
    done = daemon.cli("usage", "replay", "--tenants", other, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tenants = {one["name"]: one for one in found["tenants"]}
    for row in rows:
        one = tenants[row["tenant"]]
        kinds = ("guaranteed", "extra", "borrowed", "scavenged")
        assert one["was_used_ns"] == sum(row[f"{kind}_ns"] for kind in kinds)
        assert one["was_waited_ns"] == row["waited_ns"]
        assert one["used_ns"] + one["waited_ns"] == one["was_used_ns"] + one["was_waited_ns"]
    assert found["unknown"] == [] and found["capacity_ns"] > 0
    # At most a fifth of one of the two devices.
    assert 0 < tenants["default"]["used_ns"] <= found["capacity_ns"] / 10 + 1
    assert tenants["default"]["waited_ns"] > tenants["default"]["was_waited_ns"]
    other.write_text("[tenants.scav]\nweight = -1\n")
    done = daemon.cli("usage", "replay", "--tenants", other)
    assert done.returncode == 2 and f"{other}:2: tenant scav: weight -1 is out of range" in done.stderr


def test_what_is_no_ledger_is_refused(daemon, tmp_path):
    (tmp_path / "x").write_bytes(b"no ledger" * 100)
    for path, status in ((tmp_path / "x", 1), (tmp_path / "none", 2)):
        done = daemon.cli("usage", "verify", "--file", path)
        assert done.returncode == status and len(done.stderr.splitlines()) == 1, done.stderr
