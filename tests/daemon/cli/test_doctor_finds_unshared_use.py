"""`gpushare doctor` finds processes that use the device outside their share."""

import contextlib
import json
import shutil
import subprocess
import sys

import pytest
from run.running import copied_driver

LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuInit(0); print('loaded', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def loaded(daemon, *command):
    """A program in a grant that has loaded the library, and its pid."""
    share = ["run", "--memory", "1GiB", "--time", "10%", "--"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": daemon.env}
    with subprocess.Popen([sys.executable, "-m", "gpushare", *share, *command], **pipes) as process:
        assert process.stdout.readline() == "loaded\n"
        yield process.pid
        process.stdin.close()


def test_a_program_that_lost_its_preload(daemon):
    inside = f'exec env -u LD_PRELOAD {sys.executable} -c "$0" "$1"'
    with loaded(daemon, "sh", "-c", inside, LOAD, copied_driver(daemon.state_dir)) as pid:
        answer = json.loads(daemon.cli("doctor", "--json").stdout)
    [found] = [one for one in answer["findings"] if f"process {pid} has the driver loaded" in one["found"]]
    assert found["level"] == "wrong"
    assert "neither its memory nor its time is counted" in found["found"]
    assert "gpushare grant release g-" in found["mend"]
    assert not answer["healthy"]


def test_a_program_in_its_share_is_well(daemon):
    with loaded(daemon, sys.executable, "-c", LOAD, "libcuda.so.1"):
        answer = json.loads(daemon.cli("doctor", "--json").stdout)
    assert [one for one in answer["findings"] if one["what"].startswith("grant ")] == []


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="musl-tools is not installed")
def test_a_program_on_musl(daemon, tmp_path):
    program = tmp_path / "program"
    source = 'int main(void) { puts("loaded"); fflush(stdout); return getchar(); }'
    command = ["musl-gcc", "-include", "stdio.h", "-x", "c", "-", "-o", program]
    subprocess.run(command, input=source, text=True, check=True)
    with loaded(daemon, "env", "-u", "LD_PRELOAD", program):
        answer = json.loads(daemon.cli("doctor", "--json").stdout)
    [found] = [one for one in answer["findings"] if one["what"] == "musl image"]
    assert found["level"] == "note"
    assert "there is no CUDA" in found["found"]
