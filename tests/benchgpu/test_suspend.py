"""Part 9 where the driver does not resume what it suspended."""

import json
import os
import sys

from gpubench.config import Config
from gpubench.context import Context
from gpubench.parts import suspend
from gpubench.worker import Worker

REFUSING = (
    'import sys; print(\'{"event": "suspended"}\', flush=True); sys.stdin.readline(); '
    'print(\'{"error": "cuCheckpointProcessRestore: 999"}\', flush=True)'
)
SUSPENDED = 'import sys; print(\'{"event": "ready"}\', flush=True); sys.stdin.read()'


def test_a_refused_resume_is_a_row_and_nobody_waits_for_the_suspended(tmp_path, monkeypatch, capsys):
    context = Context(Config(True, str(tmp_path), str(tmp_path), str(tmp_path)))

    def program(code: str) -> Worker:
        return Worker([sys.executable, "-c", code], os.environ, tmp_path / "log")

    monkeypatch.setattr(suspend, "_target", lambda *_: program(SUSPENDED))
    monkeypatch.setattr(context.stage, "start", lambda *_: program(REFUSING))
    monkeypatch.setattr(context.stage, "settled_bytes", lambda: 0)
    suspend.measure(context)
    (message,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert message["row"]["name"] == "resume with 1 GiB"
    assert message["row"]["text"] == "refused: cuCheckpointProcessRestore: 999"
