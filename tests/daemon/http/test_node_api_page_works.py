"""docs/reference/node-api.md and examples/scheduler.py work exactly as written."""

import json
import os
import re
import subprocess
import sys

import pytest
from run.built import ROOT
from run.running import GPUSHARE
from run.waiting import until
from views import pagecode

PAGE = (ROOT / "docs/reference/node-api.md").read_text()
STATUSES = {
    "usage": 400,
    "not_found": 404,
    "method": 405,
    "forbidden": 403,
    "refused": 409,
    "on_loan": 409,
    "making_room": 409,
    "gone": 410,
}


def blocks(kind):
    return [block.text for block in pagecode.blocks(ROOT / "docs/reference/node-api.md", kind)]


def test_the_commands_of_the_page(daemon, tmp_path):
    """All run in one shell, in order; each answer is a line of JSON without an error."""
    command = tmp_path / "gpushare"
    command.write_text(f'#!/bin/sh\nexec {" ".join(GPUSHARE)} "$@"\n')
    command.chmod(0o755)
    env = {**daemon.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = "set -euo pipefail\n" + re.sub(r"^(api .*)$", r"\1\necho", "\n".join(blocks("sh")), flags=re.MULTILINE)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("curl:")) == (0, 1), done.stderr  # the watch was ended by --max-time
    answers = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert [answer for answer in answers if "error" in answer] == []
    resized = next(answer for answer in answers if answer.get("keep"))
    assert resized["devices"][0]["time_milli"] == 400
    assert [answer["phase"] for answer in answers if "phase" in answer] == ["bound", "bound", "released"]
    assert answers[-1]["type"] == "bookmark"


@pytest.mark.parametrize("program", blocks("python"), ids=["sync", "async"])
def test_the_programs_of_the_page(daemon, program):
    done = subprocess.run([sys.executable, "-c", program], env=daemon.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"g-\w+ \d+$|listed grants$", done.stdout.strip())


def test_the_errors_of_the_page(client):
    with open(ROOT / "gpushare/errors.py") as source:
        table = source.read()
    for code, status in STATUSES.items():
        assert re.search(rf"\b{status}   ?{code}\b", table)
        assert re.search(rf"{status} `{code}`", PAGE)


def test_the_scheduler_of_the_examples(make_daemon, tmp_path):
    """Two nodes, three jobs that each need most of a device: two run at once, one on each node; the third waits until
    one has ended."""
    nodes = [make_daemon("--simulate", "1x16GiB").start() for _ in range(2)]
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    jobs = [{"name": f"job {n}", "memory": "10GiB", "time": "60%", "command": ["cat", str(gate)]} for n in range(3)]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    words = [word for node in nodes for word in ("--node", str(node.layout.socket))]
    command = [sys.executable, str(ROOT / "examples/scheduler.py"), *words, str(tmp_path / "jobs.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scheduler:
        lines = [scheduler.stdout.readline() for _ in range(3)]
        assert sorted(line.split()[2] for line in lines) == ["runs", "runs", "waits"]
        assert [len(node.client.grants()) for node in nodes] == [1, 1]
        until(lambda: all(node.client.grants()[0]["phase"] == "active" for node in nodes), "both run", 20)
        for _ in range(2):  # a reader sees EOF once all writers have closed the FIFO
            with open(gate, "w"):
                pass
            if scheduler.poll() is None and "job" in (line := scheduler.stdout.readline()):
                lines.append(line)
        until(lambda: opened(gate) or scheduler.poll() is not None, "the third is let go", 20)
        lines += scheduler.stdout.readlines()
        assert scheduler.wait(30) == 0
    assert sum(" ended with 0" in line for line in lines) == 3
    assert [node.client.grants() for node in nodes] == [[], []]


def opened(gate):
    """Lets readers of the FIFO see EOF. Returns False, so that `until` repeats it."""
    try:
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return False
