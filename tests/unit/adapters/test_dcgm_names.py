"""The daemon's numbers under dcgm-exporter's names, without a daemon."""

import re

import pytest

from gpushare.adapters.prometheus.dcgm import Names

GIB = 1 << 30
DEVICE = {
    "id": "GPU-1", "index": 3, "minor": 3, "pci_bus_id": "00000000:03:00.0", "name": 'A "B"',
    "capacity": {"memory": 16 * GIB},
}  # fmt: skip
LABELS = 'gpu="3",UUID="GPU-1",pci_bus_id="00000000:03:00.0",device="nvidia3",modelName="A \\"B\\"",Hostname="n"'
POD = 'container="main",namespace="lab",pod="train-0"'


def metrics(wall: float, used: int = 0, **grants: tuple[float, int, int, bool]) -> str:
    """`grants`: busy seconds, memory, memory limit, and whether the grant is the pod's."""
    lines = [
        f'gpushare_device_leased_seconds_total{{gpu_uuid="GPU-1"}} {wall / 2}',
        f'gpushare_device_idle_seconds_total{{gpu_uuid="GPU-1"}} {wall / 4}',
        f'gpushare_device_switch_seconds_total{{gpu_uuid="GPU-1"}} {wall / 4}',
        f'gpushare_device_memory_used_bytes{{gpu_uuid="GPU-1"}} {used}',
    ]
    for name, (busy, memory, limit, pods) in grants.items():
        pod = ',namespace="lab",pod="train-0",container="main",pod_uid="u"' if pods else ""
        label = f'grant="{name}",tenant="t"{pod},gpu_uuid="GPU-1"'
        lines.append(f"gpushare_grant_busy_seconds_total{{{label}}} {busy}")
        if limit:  # an ended grant has none
            lines.append(f"gpushare_grant_memory_bytes{{{label}}} {memory}")
            lines.append(f"gpushare_grant_memory_limit_bytes{{{label}}} {limit}")
    return "\n".join(lines) + "\n"


def notified(names: Names, text: str) -> dict[str, dict[str, float]]:
    """Values by metric name, then by the labels that follow the device's."""
    found: dict[str, dict[str, float]] = {}
    for name, inside, value in re.findall(r"^(DCGM_\w+)\{(.*)\} (\S+)$", names.text(text, [DEVICE]), re.MULTILINE):
        assert inside.startswith(LABELS)
        found.setdefault(name, {})[inside.removeprefix(LABELS).removeprefix(",")] = float(value)
    return found


def test_use_is_what_happened_since_the_last_question():
    names = Names("n")
    first = notified(names, metrics(10.0, a=(5.0, 0, GIB, False)))
    assert set(first) == {"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED"}, "nothing is known of use yet"
    now = notified(names, metrics(14.0, a=(6.0, 0, GIB, False), b=(1.0, 0, 0, False)))
    assert now["DCGM_FI_DEV_GPU_UTIL"] == {"": 50.0}
    assert now["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] == {"": 0.5}
    again = notified(names, metrics(1.0, a=(6.0, 0, GIB, False)))
    assert "DCGM_FI_DEV_GPU_UTIL" not in again, "the daemon began anew"


def test_memory_that_a_pod_has_in_host_memory_is_not_used_of_the_device():
    """Its room stays the pod's: the parts add up to the device all the same."""
    text = metrics(10.0, GIB, a=(0.0, 4 * GIB, 6 * GIB, True))
    label = 'grant="a",tenant="t",namespace="lab",pod="train-0",container="main",pod_uid="u",gpu_uuid="GPU-1"'
    text += f'gpushare_memory_hosted_bytes{{{label}}} {3 * GIB}\ngpushare_grant_state{{grant="a",state="asleep"}} 1\n'
    now = notified(Names("n"), text)
    assert now["DCGM_FI_DEV_FB_USED"] == {POD: 1024.0, "": 0.0}
    assert now["DCGM_FI_DEV_FB_FREE"] == {POD: 5 * 1024.0, "": 10 * 1024.0}


def test_a_pods_part_is_kept_apart_and_all_parts_add_up():
    names = Names("n")
    names.text(metrics(10.0), [DEVICE])
    grants = {"a": (1.0, GIB, 4 * GIB, True), "b": (0.5, 2 * GIB, 3 * GIB, False), "c": (0.5, 0, 0, True)}
    now = notified(names, metrics(14.0, 4 * GIB, **grants))
    assert now["DCGM_FI_DEV_GPU_UTIL"] == {"": 12.5, POD: 37.5}
    assert now["DCGM_FI_DEV_FB_USED"] == {"": 3072.0, POD: 1024.0}
    assert now["DCGM_FI_DEV_FB_FREE"] == {"": 9 * 1024.0, POD: 3072.0}
    ended = notified(names, metrics(18.0, **{"c": grants["c"]}))
    assert ended["DCGM_FI_DEV_GPU_UTIL"] == {"": 0.0}


@pytest.mark.parametrize("text", ["", "# HELP x\n", "gpushare_loop_latency_seconds_sum 3\n"])
def test_a_device_of_which_nothing_is_reported(text):
    assert notified(Names("n"), text)["DCGM_FI_DEV_FB_FREE"] == {"": 16384.0}
