"""In a share devices are numbered from 0, whichever devices of the node they are."""

import json
import subprocess
import sys

import pytest

SEEN = """
import ctypes, json, os
cuda, nvml, n, count = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_int(), ctypes.c_uint()
nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
begun, uuid, handle, name = cuda.cuInit(0), (ctypes.c_ubyte * 16)(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
cuda.cuDeviceGetCount(ctypes.byref(n))
by_cuda = [cuda.cuDeviceGetUuid(uuid, i) or bytes(uuid).hex() for i in range(n.value)]
by_nvml = [nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)) or nvml.nvmlDeviceGetUUID(handle, name, 96)
           or name.value.decode()[4:].replace("-", "") for i in range(count.value)]
print(json.dumps([begun, by_cuda, by_nvml, os.environ.get("CUDA_VISIBLE_DEVICES")]))
"""
FOUR = ("--simulate", "4x8GiB")


def seen(daemon, *before: str, env: dict[str, str] | None = None, **options: str) -> list:
    command = daemon.run("1GiB", "10%", *before, sys.executable, "-c", SEEN, **options)
    done = subprocess.run(command, env=daemon.env | (env or {}), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("nodes", [True, False], ids=["nodes", "no-nodes"])
def test_a_share_has_device_0(make_daemon, nodes):
    """With device nodes, of which the share can open its own, and without: there the driver would show all devices."""
    daemon = make_daemon(*FOUR)
    if not nodes:
        daemon.forked = False
        daemon.command = ["setpriv", "--bounding-set=-mknod", "--inh-caps=-mknod", *daemon.command]
    daemon.start()
    uuids = [device["id"][4:].replace("-", "") for device in daemon.client.devices()]
    third = [uuids[2]]
    slurms = {"CUDA_VISIBLE_DEVICES": "2"}  # what a scheduler gave the job, in the node's numbers
    assert seen(daemon, gpu="2", env=slurms) == [0, third, third, None]
    assert seen(daemon, "env", "CUDA_VISIBLE_DEVICES=0", gpu="2") == [0, third, third, "0"]
    assert seen(daemon, "env", "CUDA_VISIBLE_DEVICES=2", gpu="2") == [100, [], third, "2"]
    two = seen(daemon, devices="2")[1]
    assert seen(daemon, "env", "CUDA_VISIBLE_DEVICES=1,0", devices="2") == [0, two[::-1], two, "1,0"]
    assert len(set(two)) == 2
