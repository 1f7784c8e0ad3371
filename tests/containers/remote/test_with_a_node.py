"""A container on a machine without a device, with a share of a node's: the whole way, over the tests' carrier."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote import carrier
from run.running import GPUSHARE, Daemon, daemon_apart
from run.waiting import until

from gpushare.paths import LIB_DIR

pytestmark = pytest.mark.xdist_group("machine")

SPIN = str(LIB_DIR / "gpushare-spin")
CDI = Path("/var/run/cdi")
GIB = 1 << 30


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Iterator[tuple[Daemon, dict[str, str]]]:
    """A node, and the environment of a user with the carrier's client."""
    home = tmp_path_factory.mktemp("home")
    contract = carrier.contract(home / ".config/gpushare/carriers")
    with daemon_apart(config=f'[remote]\nlisten = "127.0.0.1:0"\ncarriers = "{contract.parent}"\n') as node:
        until(lambda: node.client.remote()["relay"], "the relay serves")
        yield node, {**os.environ, "HOME": str(home)}
        node.nothing_left()


def events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def ended(process: subprocess.Popen) -> Iterator[None]:
    """Whatever happens inside `with`."""
    try:
        yield
    finally:
        process.kill()


def test_a_container_has_a_share_of_another_nodes_device(runc, elsewhere):
    node, env = elsewhere
    runc.cdi, name = CDI, f"gst-{os.getpid()}"
    command = [*GPUSHARE, "remote", "attach", "--cdi-name", name, "--memory", "1GiB", "--time", "30%", "--json"]
    command += ["--cdi", "--link-min", "any", f"unix:{node.layout.socket}"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as attach, ended(attach):
        assert attach.stdout is not None
        told = json.loads(attach.stdout.readline())
        assert told["cdi"] == f"gpushare.dev/remote={name}"
        for size, fits in (("512MiB", True), ("2GiB", False)):
            result = runc.run(told["cdi"], SPIN, "--alloc", size, "--seconds", "0")
            found = [event["ok"] for event in events(result.stdout) if event["event"] == "alloc"]
            assert found == [fits], result.stderr
        peaks = [process["peak_bytes"] for process in node.client.sim_stats()["devices"][0]["processes"]]
        assert GIB // 2 <= max(peaks) < GIB
        attach.send_signal(signal.SIGINT)
        assert attach.wait(30) == 0
    assert not (CDI / f"gpushare.dev-remote_{name}.json").exists()
    until(lambda: not node.client.grants(), "the grant ends with its attachment")
