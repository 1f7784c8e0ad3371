"""Where a segment's memory lies on a machine with several NUMA nodes."""

import re
import subprocess
import sys

import pytest

from gpushare.hostpool import memory_file

# A process of its own, as the helper: the preference is the process's.
LOOKS = """
import mmap, sys
from gpushare.hostpool import memory_file
for node in map(int, sys.argv[1:]):
    memory_file.prefer(node)
    mapped = mmap.mmap(memory_file.make(8 << 20), 8 << 20)
    sum(mapped[at] for at in range(0, len(mapped), 4096))
    [line] = [line for line in open("/proc/self/numa_maps") if "gpushare-segment" in line]
    print(line, flush=True)
    mapped.close()
"""


def test_on_the_node_that_is_asked_for():
    nodes = memory_file.nodes()
    if len(nodes) < 2:
        pytest.skip("this machine has one NUMA node")
    wanted = [nodes[-1], nodes[0]]
    text = subprocess.run(
        [sys.executable, "-c", LOOKS, *map(str, wanted)], capture_output=True, text=True, check=True
    ).stdout
    found = [dict(re.findall(r"N(\d+)=(\d+)", line)) for line in filter(None, text.split("\n"))]
    assert found == [{str(node): "2048"} for node in wanted]


@pytest.mark.parametrize("node", [-1, 0, 700, 4000])
def test_a_node_that_is_not_there_is_no_failure(node):
    program = (
        f"from gpushare.hostpool import memory_file; memory_file.prefer({node}); print(memory_file.make(4096) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
