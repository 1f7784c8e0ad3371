"""The limits that a helper of the daemon sets on itself before it begins."""

import os
import subprocess
import sys

import pytest

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


FIRST = """
import os, resource
from gpushare.processes.helper import become_alone
try:
    resource.setrlimit(resource.RLIMIT_RTPRIO, (1, 1))
except ValueError:
    raise SystemExit("may not")
become_alone(1900000000)
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    print("refused")
"""


@pytest.mark.promise("server-has-no-rights")
@pytest.mark.skipif(os.geteuid() != 0, reason="it begins as root")
def test_a_process_without_rights_goes_before_no_other():
    """The daemon's unit lets its threads run at a real-time priority, which its children inherit."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    if done.stderr == "may not\n":
        pytest.skip("root of this container may raise no limit")
    assert done.stdout == "refused\n", done.stderr
