"""Slots of a device plugin in containers under runc. With `--sizes annotations`: from kubelet's request at the plugin's
socket to a container, which gets what its pod's annotations say, or else what its slots are worth."""

import json
import threading

import pytest
from run.waiting import until
from schedulers.slotkubelet import SlotKubelet

from gpushare.adapters.deviceplugin import RESOURCE
from gpushare.adapters.deviceplugin.plugin import Allocator, DevicePlugin, Options
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.demo.bundle import TENANT_PROGRAM

pytestmark = pytest.mark.xdist_group("machine")

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def kubelet(node, short_path):
    one = SlotKubelet(short_path / "kubelet")
    one.start()
    options = Options(Sizes(10), RESOURCE, annotations=True, more={})
    plugin = DevicePlugin(node.client, short_path / "kubelet", options)
    served = threading.Thread(target=plugin.run)
    served.start()
    try:
        one.wait(10)
        yield one
    finally:
        plugin.stop()
        served.join()
        one.stop()


@pytest.mark.parametrize(
    ("pod", "time", "memory"),
    [({}, 200, 16 * GIB * 2 // 10 // MIB * MIB), ({"time": "30%", "memory": "2GiB"}, 300, 2 * GIB)],
    ids=["slots", "annotated"],
)
def test_a_container_has_the_share_of_its_slots(kubelet, node, runc, pod, time, memory):
    answer = kubelet.allocate(kubelet.free(node.client.devices()[0]["id"])[:2])
    assert (answer["cdi"], node.client.grants()) == ([], [])
    given = {name.removeprefix("gpushare.dev/"): value for name, value in answer["annotations"].items()}
    with runc.start(TENANT_PROGRAM, annotations={**pod, **given}) as container:
        assert json.loads(container.stdout.readline())["event"] == "ready"
        [grant] = node.client.grants()
        [part] = grant["devices"]
        assert (part["time_milli"], part["memory_limit_bytes"]) == (time, memory)
        container.stdin.write("memory\n")
        container.stdin.flush()
        assert json.loads(container.stdout.readline())["total_bytes"] == memory
        assert runc.grant() == grant["id"]
        container.stdin.close()
        assert container.wait(20) == 0


def test_an_init_container_and_the_main_one_have_the_whole_device_in_turn(node, runc):
    """Slots of `--sizes slots`, which kubelet gives to both when it admits their pod."""
    device = node.client.devices()[0]["id"]
    allocator = Allocator(node.client, Options(Sizes(10), RESOURCE, annotations=False, more={}))
    whole = [f"{device}.{number}" for number in range(10)]
    init, main = (allocator.allocate([whole])[0].cdi[0].rpartition("=")[2] for _ in range(2))
    for grant, other in ((init, main), (main, init)):
        with runc.start(TENANT_PROGRAM, annotations={"grant": grant}) as container:
            assert json.loads(container.stdout.readline())["event"] == "ready"
            container.stdin.write("memory\n")
            container.stdin.flush()
            assert json.loads(container.stdout.readline())["total_bytes"] == 16 * GIB
            refused = runc.run("/bin/true", annotations={"grant": other})
            assert refused.returncode != 0
            assert f"grant {grant} is in use, and {other} has some of its parts" in refused.stderr
            container.stdin.close()
            assert container.wait(20) == 0
        until(lambda grant=grant: node.client.grant(grant)["phase"] == "bound", "nothing runs in it")
    for grant in (init, main):
        node.client.release(grant)
