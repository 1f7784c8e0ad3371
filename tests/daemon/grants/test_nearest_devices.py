"""How near devices are to each other: simulated, reported by NVML, and the placement of a grant of several devices."""

import json
import os
import subprocess
import sys

import pytest

from gpushare import paths
from gpushare.paths import SIM_BINARY

# Two sockets with two devices each; NVLink connects one device of each.
PLACES = {"GPUSHARE_SIM_NVLINK": ".1.1", "GPUSHARE_SIM_PCIE": "0a22", "GPUSHARE_SIM_NUMA": "0011"}
ASKED = """
import dataclasses, json, pynvml as n
from gpushare.node.nvml import NvmlBackend
backend = NvmlBackend()
def error(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as failure:
        return f"error {failure.value}"
a, b, c, d = (n.nvmlDeviceGetHandleByIndex(index) for index in range(4))
ways = [n.nvmlDeviceGetTopologyCommonAncestor(*pair) for pair in ((a, b), (b, d), (c, d), (a, a))]
states = [error(n.nvmlDeviceGetP2PStatus, b, other, index) for other in (a, d) for index in range(6)]
ends = [error(n.nvmlDeviceGetNvLinkState, one, link) for one, link in ((a, 0), (b, 0), (b, 1), (b, 18))]
far = n.nvmlDeviceGetNvLinkRemotePciInfo(b, 0).busId
kind = n.nvmlDeviceGetNvLinkRemoteDeviceType(b, 0)
count = [n.nvmlDeviceGetFieldValues(one, [n.NVML_FI_DEV_NVLINK_LINK_COUNT])[0].value.uiVal for one in (a, b)]
print(json.dumps([[dataclasses.asdict(one) for one in backend.devices()], ways, states, ends, far, kind, count]))
"""


@pytest.fixture
def node(make_daemon, monkeypatch):
    for name, value in PLACES.items():
        monkeypatch.setenv(name, value)
    return make_daemon("--simulate", "4x16GiB").start()


def test_a_grant_of_several_devices_gets_those_that_are_nearest(node):
    devices = node.client.devices()
    names = [device["id"] for device in devices]
    assert devices[1]["links"] == {names[0]: "node", names[2]: "system", names[3]: "nvlink"}
    assert devices[2]["links"][names[3]] == "single"
    assert [device["attributes"].get("nvlink_domain") for device in devices] == [None, names[1], None, names[1]]
    assert [device["attributes"].get("numa_node") for device in devices] == ["0", "0", "1", "1"]

    grant = node.client.create(memory="1GiB", time="30%", devices=2)
    assert {part["index"] for part in grant["devices"]} == {1, 3}
    why = [one for one in node.client.call("GET", f"/v1/explain/{grant['id']}")["decisions"] if one["device"]]
    assert {one["rule"] for one in why} == {"nearest"}
    assert "of 4 devices that fit these are nearest to each other: NVLink between all of them" in why[0]["text"]

    answer = json.loads(node.cli_here("labels", "--format", "json").stdout)
    assert answer["labels"]["gpushare.dev/gpu.nvlink-domain-size"] == "2"
    assert answer["devices"][1]["links"] == devices[1]["links"]

    # The simulated NVML reports the same to the code that queries a real one.
    env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "GPUSHARE_SIM_DIR": str(node.layout.sim)}
    done = subprocess.run([sys.executable, "-c", ASKED], env=env, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    found, ways, states, ends, far, kind, count = json.loads(done.stdout)
    assert [one["links"] for one in found] == [one["links"] for one in devices]
    assert [one["attributes"].get("nvlink_domain") for one in found] == [None, names[1], None, names[1]]
    assert ways == [40, 50, 10, 0]
    assert states == [0, 0, 5, 5, 0, "error 2"] + [0] * 5 + ["error 2"]
    assert ends == ["error 3", 1, "error 2", "error 2"]
    assert (far.lower(), kind, count) == (devices[3]["pci_bus_id"], 0, [0, 1])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--nvlink", "00z"], "--nvlink 00z: write one of 0 to 9, a to f or a dot"),
        (["--numa", "001"], "more are described than there are devices"),
        (["--pcie", "0" * 17], "write one of"),
    ],
)
def test_a_description_that_makes_no_sense(option, message, tmp_path):
    command = [str(SIM_BINARY), "--socket", str(tmp_path / "s"), "--devices", "2x1GiB", *option]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert message in done.stderr
