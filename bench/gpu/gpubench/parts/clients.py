"""Every way in which programs reach the driver. The result equals the bare run's, the limit holds, and
nvidia-smi shows the share."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpubench.config import MissingError
from gpubench.context import Context
from gpubench.process import tied
from gpubench.worker import Json

GIB = 1 << 30
SHARE = 8 * GIB
_HELD = 2 * GIB
_ROUNDING_MIB = 1
_SECONDS = 150
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
_GIVEN = ("CUDA_SUCCESS", "cudaSuccess", "none")
_OUT_OF_MEMORY = ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "OutOfMemoryError", "RESOURCE_EXHAUSTED")


@dataclass(frozen=True)
class Client:
    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


def _programs(context: Context) -> Iterator[Client]:
    programs = {"C, -lcuda": "client", "nvcc, static cudart": "runtime-static", "nvcc, shared cudart": "runtime-shared"}
    for name, program in context.some(list(programs.items())):
        try:
            path = context.stage.program(program)
        except MissingError as reason:
            context.skip(f"{name}: {reason}")
            continue
        yield Client(name, [path, str(SHARE)])


def _python(context: Context, name: str, kind: str, **environment: str) -> Client:
    """Compiled code is cached in this run's scratch directory, so that the home directory need not be writable and the
    shared run finds it. One compiler process, so that no pool outlives the client."""
    kept = context.stage.work / "compiled"
    kept.mkdir(exist_ok=True)
    environment |= {variable: str(kept / variable.lower()) for variable in _CACHES}
    argv = context.stage.python("client.py", kind, str(SHARE))
    return Client(name, argv, {"TORCHINDUCTOR_COMPILE_THREADS": "1", **environment})


def _clients(context: Context) -> Iterator[Client]:
    yield from _programs(context)
    if context.simulated:
        return
    yield _python(context, "every function, asked for by name and version", "lookups")
    if context.has("cuda.bindings"):
        yield _python(context, "cuda.bindings", "bindings")
    if context.has("cupy"):
        yield _python(context, "CuPy", "cupy")
    if context.has("torch"):
        yield _python(context, "PyTorch", "torch")
        yield _python(context, "PyTorch, compiled", "torch-compiled")
        yield _python(context, "PyTorch, CUDA graph", "torch-graph")
        for name, option in (
            ("expandable segments", "expandable_segments:True"),
            ("async allocator", "backend:cudaMallocAsync"),
        ):  # PyTorch 2.11 reads the older of the two names; the newer will replace it
            both = {"PYTORCH_CUDA_ALLOC_CONF": option, "PYTORCH_ALLOC_CONF": option}
            yield _python(context, f"PyTorch, {name}", "torch", **both)
    if context.has("triton", "torch"):
        yield _python(context, "Triton", "triton")
    if context.has("jax"):
        yield _python(context, "JAX", "jax")


def _run(context: Context, client: Client, arm: str) -> tuple[Json | None, str]:
    """The answer it printed, or None and the reason."""
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
        answer: Json = json.loads(done.stdout.splitlines()[-1])
        answer["result"], answer["refused"], answer["total_bytes"]
    except (ValueError, IndexError, KeyError, TypeError):
        lines = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        return None, f"status {done.returncode}: {lines[0][:160]}"
    if done.returncode != 0:
        return None, f"status {done.returncode} after its answer"
    said = [line for line in done.stderr.splitlines() if line.startswith("gpushare: ")]
    # What was refused is said, once.
    answer["line"] = next((line for line in said if " refused: this share has --memory " not in line), "")
    return answer, ""


def _judge(bare: Json, shared: Json) -> tuple[bool, str]:
    same = bare["result"] == shared["result"]
    refused = shared["refused"] in _OUT_OF_MEMORY
    total = shared["total_bytes"]
    fits = 0 < total <= SHARE
    text = f"{'same result' if same else 'ANOTHER RESULT'}; {SHARE // GIB} GiB "
    if refused:
        text += f"refused with {shared['refused']}"
    else:
        text += (
            "GIVEN" if shared["refused"] in _GIVEN else f"met {shared['refused']}, WHICH IS NOT AN OUT-OF-MEMORY ERROR"
        )
    text += f"; sees {total / GIB:.4g} GiB" if total else "; reports no total"
    line = shared.get("line", "")
    text += f"; PRINTS {line}" if line else ""
    return same and refused and (fits or total == 0) and not line, text


def _smi(context: Context) -> bool | None:
    """nvidia-smi inside a share that holds memory must agree with the books: total, used and processes."""
    stage = context.stage
    if context.simulated or shutil.which("nvidia-smi") is None:
        context.skip("nvidia-smi inside a share: needs a real driver")
        return None
    argv = stage.python("smi.py", str(_HELD), *stage.load_argv())
    with stage.start("gpushare", argv, memory=SHARE) as worker:
        seen, grant = worker.ready, stage.grant_of(worker)
    name = "nvidia-smi"
    if seen["event"] != "smi":
        context.row(name, None, text=f"NOT OK: no answer: {seen['why']}", values={"ok": False})
        return False
    pids = [pid for pid, _ in seen["apps"]]
    holds = seen["total_mib"] == SHARE >> 20 and seen["used_mib"] >= _HELD >> 20
    book = grant["devices"][0]["memory_bytes"] / (1 << 20)
    holds = holds and abs(seen["used_mib"] - book) <= _ROUNDING_MIB
    holds = holds and seen["holder"] in pids and set(pids) <= {grant["pid"], *grant["processes"]}
    against = f"share {SHARE >> 20} MiB, {_HELD >> 20} MiB held by process {seen['holder']}; "
    against += f"books: {book:.0f} MiB in processes {grant['processes']}"
    text = f"total {seen['total_mib']} MiB, used {seen['used_mib']} MiB, processes {seen['apps']}"
    context.row(name, None, text=f"{'ok' if holds else 'NOT OK'}: {text}", against=against, values={"ok": holds})
    return holds


def _client(context: Context, client: Client, bare: Json) -> bool:
    shared, why = _run(context, client, "gpushare")
    holds, text = _judge(bare, shared) if shared is not None else (False, f"failed: {why}")
    context.row(
        client.name,
        None,
        text=f"{'ok' if holds else 'NOT OK'}: {text}",
        against=f"bare: {SHARE // GIB} GiB given",
        values={"ok": holds},
    )
    return holds


def _exported(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


def _names(context: Context) -> None:
    """Names that a program can link with or look up in a library of the driver, but not in gpushare's."""
    if context.simulated or shutil.which("nm") is None:
        context.skip("names that the driver exports: needs a real driver and nm")
        return
    from gpushare import paths
    from gpushare.node.nvml import driver_files

    ours = {"libcuda.so.1": "libgpushare.so", "libnvidia-ml.so.1": "libgpushare-ml.so"}
    for path in driver_files():
        if path.name not in ours:
            continue
        # A debugger must find its own names in the driver itself.
        known = _exported(paths.LIB_DIR / ours[path.name])
        missing = sorted(name for name in _exported(path) - known if not name.startswith("cudbg"))
        text = f"; the first: {', '.join(missing[:5])}" if missing else ""
        against = f"{path.resolve().name}: all of them are forwarded{text}"
        context.row(f"names of {path.name} that gpushare does not have", len(missing), against=against)


def measure(context: Context) -> None:
    with context.item("names that the driver exports"):
        _names(context)
    caught: list[bool] = []
    for client in _clients(context):
        bare, why = _run(context, client, "bare")
        if bare is not None and bare["refused"] not in _GIVEN:
            bare, why = None, f"{SHARE // GIB} GiB refused with {bare['refused']}"
        if bare is None:
            context.skip(f"{client.name}: does not run bare: {why}")
            continue
        with context.item(client.name):
            caught.append(False)
            caught[-1] = _client(context, client, bare)
    with context.item("nvidia-smi"):
        if (agrees := _smi(context)) is not None:
            caught.append(agrees)
    context.row("kinds of clients not caught", caught.count(False), f"of {len(caught)}", limit=0)
