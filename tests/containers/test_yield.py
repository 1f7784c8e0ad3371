"""A program in a container, which has nothing of gpushare but its grant's directory, says that it is idle."""

import pytest
from run.waiting import until

pytestmark = pytest.mark.xdist_group("machine")

MIB = 1 << 20
SHARE = {"memory": "1GiB", "time": "30%", "idle-memory": "lend"}
PROGRAM = """
import ctypes, subprocess, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
print(cuda.cuMemAlloc_v2(ctypes.byref(address), 64 << 20), flush=True)
for line in sys.stdin:
    words = ["/run/gpushare/lib/gpushare-yield", *line.split()]
    print(subprocess.run(words, env={}, stderr=sys.stdout).returncode, flush=True)
"""


@pytest.mark.promise("yield-own-grant")
def test_from_inside_a_container(runc, node):
    with runc.start("/usr/bin/python3", "-c", PROGRAM, annotations=SHARE) as program:
        assert program.stdout.readline() == "0\n", program.stderr.read()
        grant = runc.grant()

        def says(*options):
            program.stdin.write(" ".join(options) + "\n")
            program.stdin.flush()
            return program.stdout.readline()

        def memory():
            return node.client.grant(grant)["residency"]

        def hosted():
            return node.client.grant(grant)["devices"][0]["memory_hosted_bytes"]

        assert says() == "0\n"
        assert memory()["said_idle"]
        assert says("--now") == "0\n"
        until(lambda: memory()["where"] == "suspended", "it has left")
        assert hosted() == 64 * MIB
        assert says("--back") == "0\n"
        until(lambda: memory()["where"] == "resident", "it is back")
        assert not memory()["said_idle"]
        program.stdin.close()
        assert program.wait(20) == 0


def test_a_container_that_keeps_its_memory(runc, node):
    script = "y=/run/gpushare/lib/gpushare-yield; $y; echo $?; $y --now; echo $?"
    done = runc.run("/bin/sh", "-c", script, annotations={"memory": "1GiB", "time": "30%"})
    assert done.stdout.split() == ["0", "3"]
    assert "idle_memory keep" in done.stderr
