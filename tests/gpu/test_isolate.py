"""A group that fails, hangs or dies: its rows are kept, and no process remains."""

import json
import os
from pathlib import Path

import pytest
from gpubench import isolate, machine
from gpubench.config import Config
from gpubench.groups import Group
from gpubench.results import Results
from run.running import alive
from run.waiting import until

from gpushare import paths

BROKEN = """
import subprocess, sys, time

def fails(context):
    context.row("measured before", 1.0, "ms")
    raise RuntimeError("it broke")

def hangs(context):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    context.row("child", child.pid)
    time.sleep(1000)

def dies(context):
    import os
    os._exit(3)

def items(context):
    from gpubench.config import MissingError
    with context.item("first"):
        raise RuntimeError("broke")
    with context.item("second"):
        raise MissingError("not here")
    with context.item("third"):
        context.row("third", 1.0, "ms")

def needs(context):
    context.stage.program("absent")

def prints(context):
    print("a library's greeting")
    context.row("measured", 1.0, "ms", limit=2)
"""


@pytest.mark.parametrize(
    ("function", "state", "reason", "rows"),
    [
        ("fails", "failed", "RuntimeError: it broke", 1),
        ("hangs", "timed out", "stopped after its limit of ", 1),
        ("dies", "failed", "its process ended with status 3", 0),
        ("prints", "ok", "", 1),
        ("items", "incomplete", "1 of what it measures failed", 1),
        ("needs", "skipped", "absent could not be built: why", 0),
    ],
)
def test_a_bad_group_keeps_its_rows_and_leaves_nothing(tmp_path, function, state, reason, rows):
    (tmp_path / "broken.py").write_text(BROKEN)
    not_built = {"absent": "absent could not be built: why"}
    Config(True, str(tmp_path), str(tmp_path), not_built).save(tmp_path / "config.json")
    path = os.pathsep.join([str(tmp_path), str(machine.ROOT / "bench" / "gpu"), str(Path(paths.__file__).parents[1])])
    results = Results(tmp_path / "out" / "x.json", machine.facts(True), "run")
    group = Group("bad", "A bad group", f"broken:{function}", 60)
    # A hanging function runs until its limit; a busy machine may not have started it by then.
    for limit in (1.5, 6, 24) if function == "hangs" else (60,):
        entry = results.begin(group)
        isolate.run(group, tmp_path / "config.json", {**os.environ, "PYTHONPATH": path}, limit, entry, results.write)
        if len(entry["rows"]) == rows:
            break
    assert (entry["state"], len(entry["rows"])) == (state, rows)
    assert entry["reason"].startswith(reason)
    assert json.loads(results.path.read_text())["runs"][0]["groups"][-1] == entry
    if function == "items":
        assert (entry["broken"], entry["skipped"]) == (["first: RuntimeError: broke"], ["second: not here"])
    if function == "prints":
        assert (entry["rows"][0]["judged"], entry["rows"][0]["limit"]) == (1, 2)
    if function == "hangs":
        child = int(entry["rows"][0]["value"])
        until(lambda: not alive(child), "the end of the child that was killed")
