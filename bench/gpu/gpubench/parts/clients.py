"""Part 1: every way in which programs reach the driver. The result equals the bare run's, the limit holds, and
nvidia-smi shows the share."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpubench.context import Context
from gpubench.process import tied

GIB = 1 << 30
SHARE = 8 * GIB
_SECONDS = 150


@dataclass(frozen=True)
class Client:
    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


def _clients(context: Context) -> Iterator[Client]:
    stage = context.stage
    yield Client("C, -lcuda", [stage.program("client"), str(SHARE)])
    if context.simulated:
        return
    yield Client("nvcc, static cudart", [stage.program("runtime-static"), str(SHARE)])
    yield Client("nvcc, shared cudart", [stage.program("runtime-shared"), str(SHARE)])
    if context.has("cuda.bindings"):
        yield Client("cuda.bindings", stage.python("client.py", "bindings", str(SHARE)))
    if context.has("cupy"):
        yield Client("CuPy", stage.python("client.py", "cupy", str(SHARE)))
    if context.has("torch"):
        yield Client("PyTorch", stage.python("client.py", "torch", str(SHARE)))
        yield Client("PyTorch, compiled", stage.python("client.py", "torch-compiled", str(SHARE)))
        yield Client("PyTorch, CUDA graph", stage.python("client.py", "torch-graph", str(SHARE)))
        for name, option in (
            ("expandable segments", "expandable_segments:True"),
            ("async allocator", "backend:cudaMallocAsync"),
        ):
            environment = {"PYTORCH_CUDA_ALLOC_CONF": option, "PYTORCH_ALLOC_CONF": option}
            yield Client(f"PyTorch, {name}", stage.python("client.py", "torch", str(SHARE)), environment)
    if context.has("triton", "torch"):
        yield Client("Triton", stage.python("client.py", "triton", str(SHARE)))
    if context.has("jax"):
        yield Client("JAX", stage.python("client.py", "jax", str(SHARE)))


def _run(context: Context, client: Client, arm: str) -> tuple[dict[str, Any] | None, str]:
    """What it printed, or None and why not."""
    command, env = context.stage.command(arm, client.argv, memory=SHARE, time_milli=500)
    try:
        done = subprocess.run(
            command,
            env={**env, **client.env},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            preexec_fn=tied(),
        )
    except subprocess.TimeoutExpired:
        return None, f"no end within {_SECONDS} s"
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        answer["result"], answer["refused"], answer["total_bytes"]
    except (ValueError, IndexError, KeyError, TypeError):
        lines = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        return None, f"status {done.returncode}: {lines[0][:160]}"
    return answer, ""


def _judge(bare: dict[str, Any], shared: dict[str, Any]) -> tuple[bool, str]:
    same = bare["result"] == shared["result"]
    refused = shared["refused"] not in ("CUDA_SUCCESS", "cudaSuccess", "none")
    total = shared["total_bytes"]
    fits = 0 < total <= SHARE
    text = f"{'same result' if same else 'ANOTHER RESULT'}; {SHARE // GIB} GiB "
    text += f"refused with {shared['refused']}" if refused else "GIVEN"
    text += f"; sees {total / GIB:.4g} GiB" if total else "; says no total"
    return same and refused and (fits or total == 0), text


def _smi(context: Context, arm: str) -> None:
    """nvidia-smi inside the share: the limit as total, nothing of the neighbours."""
    if context.simulated or shutil.which("nvidia-smi") is None:
        context.skip("nvidia-smi inside a share: needs a real driver")
        return
    query = ["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    command, env = context.stage.command(arm, query, memory=SHARE, time_milli=500)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    try:
        total, used = (int(value) for value in done.stdout.strip().splitlines()[0].split(","))
    except (ValueError, IndexError):
        context.row(f"nvidia-smi under {arm}", None, text=f"no answer: {done.stderr.strip()[:120]}")
        return
    context.row(f"nvidia-smi under {arm}: total", total, "MiB", against=f"share of {SHARE >> 20} MiB; used: {used} MiB")


def measure(context: Context) -> None:
    good: dict[str, int] = dict.fromkeys(context.stage.arms, 0)
    tried = 0
    for client in _clients(context):
        bare, why = _run(context, client, "bare")
        if bare is None:
            context.skip(f"{client.name}: does not run bare: {why}")
            continue
        tried += 1
        for arm in context.stage.arms:
            shared, why = _run(context, client, arm)
            holds, text = _judge(bare, shared) if shared is not None else (False, f"failed: {why}")
            good[arm] += holds
            context.row(
                f"{client.name} under {arm}",
                None,
                text=f"{'ok' if holds else 'NOT OK'}: {text}",
                against=f"bare: refused {bare['refused']}",
                values={"ok": holds},
            )
    for arm in context.stage.arms:
        context.row(f"clients caught by {arm}", good[arm], f"of {tried}")
        _smi(context, arm)
