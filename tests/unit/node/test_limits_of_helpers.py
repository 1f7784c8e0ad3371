"""The limits that a helper of the daemon sets on itself before it begins."""

import subprocess
import sys

PROGRAM = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from gpushare.processes.helper import confine
confine(str(os.getppid()), keep=set(), descriptors=256)
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_AS)[0] >> 30)
"""


def test_it_keeps_a_limit_that_is_lower_already():
    """Root of a container may not raise it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(40, 40) 1\n"), done.stderr
