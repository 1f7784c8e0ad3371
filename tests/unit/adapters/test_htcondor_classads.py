"""HTCondor's ClassAds of devices, and the grant that a job's slots make."""

from pathlib import Path

import pytest
from run.running import Daemon

from gpushare.adapters.htcondor import ads
from gpushare.errors import UsageError

GOLDEN = Path(__file__).with_name("golden") / "htcondor.ads"


def device(number: int, **more: object) -> dict[str, object]:
    return {
        "id": f"GPU-ddc1c098-0000-0000-0000-00000000000{number}",
        "name": 'NVIDIA H100 "80GB"',
        "pci_bus_id": f"0000:0{number}:00.0",
        "capacity": {"time": 1000, "memory": 80 << 30},
        "attributes": {
            "driver_version": "580.65.06",
            "compute_capability": "9.0",
            "cuda_version": "13.0",
        },
        "health": "healthy",
        **more,
    }


def test_ads_are_those_of_condor_gpu_discovery():
    devices = [device(1), device(2, capacity={"time": 1000, "memory": 40 << 30}), device(3, state="drained")]
    assert ads.text([*devices, device(4, health="unhealthy")], 4) == GOLDEN.read_text()


def test_no_device_is_zero():
    assert ads.text([], 4) == ads.text([device(1, health="unhealthy")], 4) == "DetectedGPUs=0\n"


def test_a_value_that_is_no_number_is_left_out():
    odd = ads.text([device(1, attributes={"compute_capability": "9; Evil=1", "cuda_version": "simulated"})], 1)
    assert "Capability" not in odd
    assert "DriverVersion" not in odd


@pytest.mark.parametrize(
    ("assigned", "memory", "milli", "devices", "name"),
    [
        ("GPU-a", "25%", 250, 1, "GPU-a"),
        ("GPU-a,GPU-a", "50%", 500, 1, "GPU-a"),
        ("GPU-a, GPU-b", "25%", 250, 2, "GPU-a,GPU-b"),
        ("GPU-a,GPU-a,GPU-a,GPU-a", "100%", 1000, 1, "GPU-a"),
    ],
)
def test_a_jobs_share_is_that_of_its_slots(assigned, memory, milli, devices, name):
    expected = {"memory": memory, "time": milli, "devices": devices, "device": name}
    assert ads.share(assigned, 4) == expected


@pytest.mark.parametrize("assigned", ["", ",", "GPU-a,GPU-a,GPU-b", "GPU-a,GPU-a,GPU-a,GPU-a,GPU-a"])
def test_what_is_no_share_is_refused(assigned):
    with pytest.raises(UsageError):
        ads.share(assigned, 4)


def test_slots_of_the_adapter_fill_a_device_exactly(tmp_path):
    """What the adapter prints for the startd agrees with what it runs for a job that got those slots."""
    daemon = Daemon(tmp_path / "state", "2x16GiB").start()
    try:
        answer = daemon.cli_here("adapter", "htcondor", "--slots", "3").stdout
        names = answer.split('"')[1].split(", ")
        assert len(names) == 6
        words = (
            "adapter",
            "htcondor",
            "--slots",
            3,
            "--",
            "sh",
            "-c",
            "echo $GPUSHARE_GRANT_DIR:$CUDA_VISIBLE_DEVICES",
        )
        given = {"_CONDOR_AssignedGPUs": names[5], "CUDA_VISIBLE_DEVICES": names[5]}
        job = daemon.cli(*words, env={**daemon.env, **given})
        (grant,) = daemon.client.grants(ended=True)
        assert (job.returncode, job.stdout.endswith(":\n"), grant["id"] in job.stdout) == (0, True, True), job.stderr
        part = grant["devices"][0]
        assert part["id"] == names[5]
        assert (part["time_milli"], part["memory_limit_bytes"] * 3 // (1 << 30)) == (333, 15)
        bare = daemon.cli(*words)
        assert (bare.returncode, bare.stdout.strip()) == (0, ":")
        assert len(daemon.client.grants(ended=True)) == 1
    finally:
        daemon.stop()
