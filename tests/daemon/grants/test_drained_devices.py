"""Drained devices take no new grants; the grants that they have continue."""

import pytest
from machine.members import as_nobody, open_to_members
from run.running import SPIN, Tenant
from run.waiting import until

from gpushare.client import Client
from gpushare.daemon.state.drains import FILE, Drains
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError, UsageError

GIB = 1 << 30


@pytest.fixture(autouse=True)
def undrained(daemon):
    yield
    for device in daemon.client.devices():
        daemon.client.undrain(device["id"])


def states(client):
    return [device["state"] for device in client.devices()]


def test_no_new_grants_and_the_old_ones_go_on(daemon, client):
    tenant = Tenant(daemon.run("1GiB", "30%", SPIN, gpu="0"))
    watch = client.watch(timeout=20)
    next(watch)
    device = client.drain("0", "the fan is loud")
    assert (device["state"], device["drain_reason"]) == ("draining", "the fan is loud")
    assert device["allocatable"] == {"time": 0, "memory": 0}
    event = next(event for event in watch if event["name"] == "DeviceDrain")
    assert event["object"]["state"] == "draining"
    with pytest.raises(RefusedError, match="takes no new grants: it is drained: the fan is loud"):
        client.create(memory=GIB, time=100, device=0)
    assert client.create(memory=GIB, time=100)["devices"][0]["index"] == 1, "any other will do"
    assert tenant.tell("alloc 512MiB")["ok"]
    busy = daemon.busy(tenant.pid)[0]
    tenant.tell("run 200000 1")
    until(lambda: daemon.busy(tenant.pid)[0] > busy, "it works on", 20)
    tenant.close()
    event = next(event for event in watch if event["name"] == "DeviceDrain")
    assert event["object"]["state"] == "drained"
    assert states(client) == ["drained", "ready"]
    assert client.undrain("0")["state"] == "ready"
    assert client.create(memory=GIB, time=100, device=0)["devices"][0]["index"] == 0


def test_it_outlives_the_daemon(daemon):
    device = daemon.client.devices()[1]["id"]
    daemon.client.drain(device, "repair")
    daemon.kill()
    daemon.start()
    assert states(daemon.client) == ["ready", "drained"]
    assert daemon.client.devices()[1]["drain_reason"] == "repair"


def test_a_file_that_cannot_be_read_is_put_aside(daemon):
    daemon.client.drain("0")
    daemon.terminate()
    (daemon.layout.state / "drained.json").write_text('{"GPU-x": ')
    daemon.start()
    assert states(daemon.client) == ["ready", "ready"]
    assert (daemon.layout.state / "drained.damaged").exists()
    assert "no device is drained" in daemon.log.read_text()


def test_on_the_command_line(daemon):
    answer = daemon.cli_here("drain", "1", "--reason", "repair")
    assert (answer.returncode, answer.stdout.split(" is ")[1]) == (0, "drained\n")
    shown = daemon.cli_here("devices").stdout
    assert "healthy, drained" in shown and "takes no new grants: repair" in shown
    assert daemon.cli_here("undrain", "1").returncode == 0
    assert "drained" not in daemon.cli_here("devices").stdout
    assert daemon.cli_here("drain", "9").returncode == 2


@pytest.mark.parametrize(
    ("device", "reason", "error"),
    [
        ("9", "", NotFoundError),
        ("0", "two\nlines", UsageError),
        ("0", "x" * 201, UsageError),
        ("0", "\x1b[31m", UsageError),
    ],
)
def test_what_makes_no_sense_changes_nothing(client, device, reason, error):
    with pytest.raises(error):
        client.drain(device, reason)
    assert states(client) == ["ready", "ready"]


def test_root_alone_drains(public):
    open_to_members(public.layout.socket)
    answer = as_nobody(lambda: Client(public.layout.socket).drain("0"))
    assert answer.startswith(ForbiddenError.__name__)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[" * 100_000, b'{"GPU-1": {"since_ns": 1e999, "reason": ""}}'],
    ids=["bytes", "deep", "huge"],
)
def test_a_damaged_file_drains_nothing_and_is_kept(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    assert not Drains(tmp_path)
    assert (tmp_path / FILE).with_suffix(".damaged").read_bytes() == content
