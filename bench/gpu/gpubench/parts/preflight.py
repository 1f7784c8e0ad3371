"""Before the groups that share: whether gpushare can share anything here, and why not, once."""

import subprocess
import sys

from gpubench.config import clean_environment
from gpubench.context import Context
from gpubench.process import tied

_SECONDS = 60


def _output(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False, preexec_fn=tied()
    )
    return done.returncode, f"{done.stdout}\n{done.stderr}".strip()


def measure(context: Context) -> None:
    """Raises RuntimeError with what `gpushare run` printed, and what `gpushare doctor` finds missing."""
    socket = str(context.stage.client.path)
    _, found = _output([sys.executable, "-m", "gpushare", "doctor", "--socket", socket], clean_environment())
    missing = [" ".join(line.split()) for line in found.splitlines() if line.startswith("missing")]
    for line in missing:
        context.skip(f"gpushare doctor: {line}")
    command, env = context.stage.command("gpushare", ["true"], memory=1 << 30, time_milli=500)
    status, printed = _output(command, env)
    if status != 0:
        last = printed.splitlines()[-1:] or ["nothing printed"]
        raise RuntimeError("; ".join([f"gpushare run true ended with status {status}: {last[0]}", *missing])[:600])
