"""bench/gpu's programs that need a real driver, with stand-ins for the driver."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpubench import machine
from gpubench.parts import clients
from gpubench.stage import PROGRAMS

HOLDER = """
import json, sys
print(json.dumps({"event": "ready", "pid": 77}), flush=True)
for line in sys.stdin:
    print(json.dumps({"event": "alloc", "held_bytes": int(line.split()[2])}), flush=True)
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def shown(tmp_path: Path, answers: dict[str, str] | None) -> dict:
    """The output of smi.py if nvidia-smi gives these answers (by query); None: there is no nvidia-smi."""
    if answers is not None:
        cases = "".join(f"--query-{what}=*) {answer} ;;\n" for what, answer in answers.items())
        executable(tmp_path / "nvidia-smi", f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
    command = [sys.executable, str(PROGRAMS / "smi.py"), "4096", sys.executable, "-c", HOLDER]
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, input="", env=env, capture_output=True, text=True, timeout=30, check=True)
    return json.loads(done.stdout)


APPS = "echo '77, 2560'; echo '78, [N/A]'"


def test_what_nvidia_smi_says_is_taken_as_it_is(tmp_path):
    assert shown(tmp_path, {"gpu": "echo '8192, 3000'", "compute-apps": APPS}) == {
        "event": "smi",
        "holder": 77,
        "held_bytes": 4096,
        "total_mib": 8192,
        "used_mib": 3000,
        "apps": [[77, "2560"], [78, "[N/A]"]],
    }


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (None, "No such file or directory: 'nvidia-smi'"),
        ({"gpu": "echo 'No devices were found'; exit 6"}, "No devices were found"),
        ({"gpu": "echo '[N/A], [N/A]'"}, "'[N/A]'"),
        ({"gpu": "echo '8192, 1'; echo '8192, 2'", "compute-apps": ""}, "[['8192', '1'], ['8192', '2']]"),
    ],
)
def test_an_nvidia_smi_without_an_answer_is_an_answer(tmp_path, answers, why):
    found = shown(tmp_path, answers)
    assert found["event"] == "refused"
    assert why in found["why"]


def test_nvidia_smi_is_found_where_drivers_are_mounted(tmp_path, monkeypatch):
    mounted, usual = tmp_path / "mounted", tmp_path / "usual"
    mounted.mkdir()
    usual.mkdir()
    executable(mounted / "nvidia-smi", "#!/bin/sh\n")
    monkeypatch.setattr(machine, "MOUNTED", mounted)
    monkeypatch.setenv("PATH", str(usual))
    machine.find_driver_programs()
    assert shutil.which("nvidia-smi") == str(mounted / "nvidia-smi")
    executable(usual / "nvidia-smi", "#!/bin/sh\n")
    machine.find_driver_programs()
    assert shutil.which("nvidia-smi") == str(usual / "nvidia-smi")


ANSWER = """print('a greeting\\n{"result": 7, "refused": "none", "total_bytes": 1}')"""


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (ANSWER, ""),
        (f"import os\n{ANSWER[:-1]}, flush=True)\nos.kill(os.getpid(), 11)", "status -11 after its answer"),
        ("raise RuntimeError('no device')", "status 1: RuntimeError: no device"),
    ],
)
def test_a_client_that_dies_after_its_answer_did_not_run(program, why):
    argv = [sys.executable, "-c", program]
    stage = SimpleNamespace(command=lambda *_, **__: (argv, dict(os.environ)))
    answer, found = clients._run(SimpleNamespace(stage=stage), clients.Client("it", argv), "bare")
    assert found == why
    assert (answer is None) == bool(why)
