"""nvidia-smi of the simulated node, as people and programs call it."""

import csv
import io
import subprocess
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from run.simworker import CONTEXT, start

from gpushare.paths import SIM_LIB_DIR, SIM_SMI, SPIN_PTX

SMI = SIM_LIB_DIR / SIM_SMI
MIB = 1 << 20


def smi(sim: Any, *arguments: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [SMI, *arguments], env=sim.environment(**env), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def good(sim: Any, *arguments: str) -> str:
    status, printed = smi(sim, *arguments)
    assert status == 0, printed
    return printed


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text), skipinitialspace=True))


def test_the_table(sim: Any) -> None:
    worker = start(sim)
    worker.do(f"p = ok(d.cuMemAlloc({100 * MIB}))")
    lines = good(sim).splitlines()
    assert {len(line) for line in lines[1:] if line} == {91}, "all lines are as wide as the frame"
    text = "\n".join(lines)
    assert "| NVIDIA-SMI 580.0                  Driver Version: 580.0          CUDA Version: 13.0     |" in text
    assert "|   0  gpushare simulated GPU         On  |   00000000:01:00.0 Off |" in text
    assert f"|     {(CONTEXT >> 20) + 100}MiB /  16384MiB |" in text
    assert "|       0MiB /  16384MiB |" in text
    process = next(line for line in lines if f" {worker.pid} " in line)
    assert process.split()[1:6] == ["0", "N/A", "N/A", str(worker.pid), "C"]
    assert process.endswith(f" {(CONTEXT >> 20) + 100}MiB |")


def test_without_processes(sim: Any) -> None:
    assert "|  No running processes found  " in good(sim)
    assert good(sim, "--query-compute-apps=pid,used_memory", "--format=csv") == "pid, used_memory [MiB]\n"


def test_list(sim: Any) -> None:
    (one, other) = good(sim, "-L").splitlines()
    assert one.startswith("GPU 0: gpushare simulated GPU (UUID: GPU-")
    assert good(sim, "-L", "-i", "1").splitlines() == [other]
    uuid = other.partition("UUID: ")[2].rstrip(")")
    for name in (uuid, "00000000:02:00.0", "02:00.0", "1"):
        assert good(sim, f"--id={name}", "--list-gpus").splitlines() == [other], name


def test_query_devices(sim: Any) -> None:
    fields = "index,name,uuid,memory.total,memory.used,utilization.gpu,power.limit,temperature.gpu,mig.mode.current"
    head, first, second = rows(good(sim, f"--query-gpu={fields}", "--format=csv"))
    assert head == [
        *("index", "name", "uuid", "memory.total [MiB]", "memory.used [MiB]", "utilization.gpu [%]"),
        *("power.limit [W]", "temperature.gpu", "mig.mode.current"),
    ]
    assert first[:2] + first[3:] == [
        *("0", "gpushare simulated GPU", "16384 MiB", "0 MiB", "0 %", "300.00 W"),
        *("[N/A]", "[N/A]"),
    ]
    assert second[0] == "1"
    assert second[2] != first[2]
    plain = good(sim, "--query-gpu=gpu_bus_id, memory.total", "--format=csv,noheader,nounits", "-i", "0")
    assert plain == "00000000:01:00.0, 16384\n"


def test_query_processes(sim: Any) -> None:
    worker = start(sim, 1)
    fields = "gpu_uuid,pid,process_name,used_gpu_memory"
    ((uuid, pid, name, used),) = rows(good(sim, f"--query-compute-apps={fields}", "--format", "csv,noheader"))
    assert uuid == good(sim, "--query-gpu=uuid", "--format=csv,noheader", "-i", "1").strip()
    assert (pid, used) == (str(worker.pid), f"{CONTEXT >> 20} MiB")
    assert "python" in name


def test_utilisation_is_measured(sim: Any) -> None:
    worker = start(sim)
    worker.do(f"""
        import ctypes
        text = open({str(SPIN_PTX)!r}, "rb").read() + b"\\0"
        spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b"spin_ns"))
        ns = ctypes.c_uint64({60 * 10**9}); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
        ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0))
    """)
    asked = good(sim, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits").split()
    assert (int(asked[0]) > 50, asked[1]) == (True, "0")
    worker.process.kill()


def test_log(sim: Any) -> None:
    worker = start(sim)
    text = good(sim, "-q", "-i", "0")
    assert "==============NVSMI LOG==============" in text
    assert "Attached GPUs                                          : 1\n" in text
    assert "    FB Memory Usage\n        Total                                          : 16384 MiB\n" in text
    assert f"        Process ID                                     : {worker.pid}\n" in text
    assert "Product Name" not in good(sim, "-q", "-d", "MEMORY")
    log = ElementTree.fromstring(good(sim, "-q", "-x"))
    assert [gpu.get("id") for gpu in log.findall("gpu")] == ["00000000:01:00.0", "00000000:02:00.0"]
    assert log.findtext("gpu/fb_memory_usage/total") == "16384 MiB"
    assert log.findtext("gpu/processes/process_info/pid") == str(worker.pid)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--query-gpu=index,nothing", "--format=csv"], 2, 'Field "nothing" is not a valid field to query.'),
        (["--query-gpu=index"], 2, "Invalid combination of input arguments."),
        (["--query-gpu=index", "--format=json"], 2, "Invalid combination of input arguments."),
        (["--no-such-option"], 2, "Invalid combination of input arguments."),
        (["-l", "never"], 2, "invalid value"),
        (["-i", "7"], 6, "No devices were found"),
    ],
)
def test_mistakes(sim: Any, arguments: list[str], status: int, message: str) -> None:
    answered, printed = smi(sim, *arguments)
    assert answered == status
    assert message in printed


def test_without_a_driver(sim: Any) -> None:
    status, printed = smi(sim, GPUSHARE_SIM_DIR="/nowhere")
    assert (status, printed.partition(".")[0]) == (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
    )
    status, printed = smi(sim, LD_LIBRARY_PATH="/nowhere")
    assert status == 12
    assert "couldn't find libnvidia-ml.so library" in printed
