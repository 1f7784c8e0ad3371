"""Every row of hooks.tsv is called in every way a program can reach the driver, and behaves as the bare driver does.

The snippets (rows/*.c) check what they see: results, data, handles. The test compares their results with a run on the
bare simulated driver, and the grant's page with the simulator at each point where a snippet stops.
"""

import itertools
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory.rowruns import Answer, Run
from pages.handmade import Grant, Simulator
from run import built

from gpushare import paths

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "native"
sys.path.insert(0, str(HERE))
import gen_rows  # noqa: E402 - found through the path set above

HOOKS = {row.symbol: row for row in gen_rows.gen_hooks.read_rows()}
GROUPS = sorted({group for group, _ in gen_rows.snippets().values()})
ORIGINS = ("main", "constructor", "late", "exited")
BY_ORIGIN = {origin: pytest.mark.xdist_group(f"rows-{origin}") for origin in ORIGINS}
"""One process runs all tests of an origin, so that the reference is made once."""
ENTRIES = ("linked", "proc")
PLACES = ("preloaded", "placed", "mounted")


@pytest.fixture(scope="session")
def program() -> Path:
    return built.program("rows")


def run_all(
    sim: Simulator, grant: Grant | None, prefix: list[Any], env: dict[str, str], entry: str, origin: str, gated: bool
) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    for group in GROUPS:
        found |= Run(sim, grant, [*prefix, entry, origin, group], env, "gated" if gated else "held").rows()
    return found


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Callable[[str, str], dict[str, Answer]]:
    """The reference: the same program on the driver itself."""
    known: dict[tuple[str, str], dict[str, Answer]] = {}

    def make(entry: str, origin: str) -> dict[str, Answer]:
        if (entry, origin) not in known:
            sim = Simulator(tmp_path_factory.mktemp("bare") / "sim")
            env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "GPUSHARE_SIM_DIR": str(sim.directory)}
            env.pop("GPUSHARE_GRANT_DIR", None)
            answers = run_all(sim, None, [program], env, entry, origin, False)
            sim.stop()
            assert failures(answers) == [], "on the bare driver"
            known[entry, origin] = answers
        return known[entry, origin]

    return make


def failures(answers: dict[str, Answer]) -> list[str]:
    for answer in answers.values():
        if not answer.report:
            answer.report = {"ok": False, "why": "did not finish"}
    wrong = [f"{name}: {answer.report['why']}" for name, answer in answers.items() if not answer.report["ok"]]
    return wrong + [f"{name}: not called" for name in HOOKS.keys() - answers.keys()]


@pytest.mark.parametrize("origin", [pytest.param(origin, marks=mark) for origin, mark in BY_ORIGIN.items()])
@pytest.mark.parametrize("entry", (*ENTRIES, pytest.param("dlsym", marks=pytest.mark.slow)))
def test_the_bare_driver(
    bare: Callable[..., dict[str, Answer]], entry: str, origin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = bare(entry, origin)
    wrong = failures(answers)
    assert wrong == [], "\n".join(wrong)
    refused = {name: answer.report["result"] for name, answer in sorted(answers.items()) if answer.report["refused"]}
    if (entry, origin) == ("linked", "main"):
        with capsys.disabled():  # print the rows that a passing run does not prove
            print(
                f"\n{len(answers)} rows; the driver refuses {len(refused)}, proven by the same refusal only: {refused}"
            )


def differences(here: dict[str, Answer], there: dict[str, Answer]) -> list[str]:
    """Differences between a run under the interposer and the bare run, or between the page and the simulator."""
    wrong = failures(here)
    for name, answer in here.items():
        if not answer.report["ok"]:
            continue
        truth, kind = there[name], HOOKS[name].kind
        for key in ("result", "calls", "refused"):
            if answer.report[key] != truth.report[key]:
                wrong.append(f"{name}: {key} is {answer.report[key]}, {truth.report[key]} without us")
        if answer.books != truth.books:
            wrong.append(f"{name}: the books have {answer.books}, {truth.books} without us")
        if answer.page != answer.books:
            wrong.append(f"{name}: charged {answer.page}, the books have {answer.books}")
        if kind != "pass" and answer.report["pointers"] not in ("same", "no version"):
            wrong.append(f"{name}: {answer.report['pointers']}")
        counted, expected = answer.report["launches_delta"], answer.report["launches_expected"]
        if counted != expected:
            wrong.append(f"{name}: {counted} launches, not {expected}")
        wrong += miscounted(name, answer.report)
        works = kind in ("launch", "fill") or name.startswith("cuGraphLaunch")
        if works and not answer.report["refused"] and expected == 0:
            wrong.append(f"{name}: no launch was looked for")
    # With a wide tolerance: timing/charges/test_meter.py tests how exact the meter is. Of most rows: a thread that
    # waits on a busy machine returns late now and then, and nobody knows that this was not the device's time.
    if not 0.5 <= (part := statistics.median(metered_parts(here))) <= 2:
        wrong.append(f"of what the kernels of a row took, {part:.2f} was metered")
    return wrong


def metered_parts(here: dict[str, Answer]) -> list[float]:
    """For each row that launches kernels, what was metered as a part of what they took."""
    parts, last = [], Answer()
    for name, answer in here.items():
        if answer.busy_ns < last.busy_ns:
            last = Answer()  # another group's process
        if HOOKS[name].kind == "launch" and answer.busy_ns > last.busy_ns:
            parts.append((answer.metered_ns - last.metered_ns) / (answer.busy_ns - last.busy_ns))
        last = answer
    return parts


BYTES = 1088 << 10
"""What a row copies (rows.h)."""
NOT_READY = 600
UNCOUNTED = ("Batch", "3DWith")
"""Copies of several boxes: their directions are looked at one by one, their bytes are not."""


def miscounted(name: str, report: dict[str, Any]) -> list[str]:
    """What a row's first call counted wrongly of that which a program far from its device would wait for."""
    hook, counted = HOOKS[name], (report["answers"], report["bytes_in"], report["bytes_out"])
    wanted = [int(hook.answers and report["result"] != NOT_READY), 0, 0]
    direction = hook.arguments[0] if hook.kind == "copy" else ""
    if direction in ("GS_COPY_IN", "GS_COPY_OUT"):
        wanted = [int(hook.handler == "@copy_wait"), BYTES, 0]
        wanted[1:] = wanted[1:] if direction == "GS_COPY_IN" else [0, BYTES]
    elif hook.kind == "copy" and direction != "GS_COPY_WITHIN":  # the first call of these snippets is to the device
        wanted = [int(hook.handler == "@copy_wait"), 0 if any(part in name for part in UNCOUNTED) else BYTES, 0]
    return [] if counted == tuple(wanted) else [f"{name}: counted {counted} answers and bytes, not {wanted}"]


def agree(here: dict[str, Answer], there: dict[str, Answer]) -> None:
    wrong = differences(here, there)
    assert wrong == [], "\n".join(wrong)


@pytest.fixture
def placed_so(
    place: str, grant: Grant, placed: Path, environment: Callable[..., dict[str, str]], tmp_path: Path
) -> tuple[list[str], dict[str, str]]:
    """The command prefix and the environment for each kind of placement."""
    if place == "preloaded":
        return [], environment(grant)
    if place == "placed":
        return [], {**environment(grant, ""), "LD_LIBRARY_PATH": str(placed)}
    # replaces the file that every program finds; the interposer finds the driver where a container has it
    shutil.copytree(paths.SIM_LIB_DIR, tmp_path / "driver")
    (grant.directory / "driver").unlink()
    (grant.directory / "driver").symlink_to(tmp_path / "driver")
    over = f'mount --bind {paths.INTERPOSER} {paths.SIM_LIB_DIR / "libcuda.so.1"} && exec "$@"'
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", over, "sh"], environment(grant, "")


def pairwise(*values: tuple[str, ...]) -> list[Any]:
    """The product of some parameters, the last of which is the origin. Combinations that are not needed to cover every
    pair of two values are marked slow."""
    seen: set[tuple[int, str, int, str]] = set()
    chosen = []
    product = list(itertools.product(*values))

    def pairs(case: tuple[str, ...]) -> set[tuple[int, str, int, str]]:
        return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}

    while missing := set().union(*map(pairs, product)) - seen:
        chosen.append(max(product, key=lambda case: len(pairs(case) & missing)))
        seen |= pairs(chosen[-1])
    return [
        pytest.param(*case, marks=[BY_ORIGIN[case[-1]], *([] if case in chosen else [pytest.mark.slow])])
        for case in product
    ]


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("place", "entry", "origin"), pairwise(PLACES, ENTRIES, ORIGINS))
def test_under_the_interposer(
    sim: Simulator,
    grant: Grant,
    program: Path,
    bare: Callable[..., dict[str, Answer]],
    placed_so: tuple[list[str], dict[str, str]],
    entry: str,
    origin: str,
) -> None:
    prefix, env = placed_so
    answers = run_all(sim, grant, [*prefix, program], env, entry, origin, False)
    agree(answers, bare(entry, origin))


@BY_ORIGIN["main"]
@pytest.mark.parametrize("entry", ("linked", pytest.param("proc", marks=pytest.mark.slow)))
def test_outside_any_grant(
    sim: Simulator,
    program: Path,
    bare: Callable[..., dict[str, Answer]],
    environment: Callable[..., dict[str, str]],
    entry: str,
) -> None:
    """Preloaded outside a grant, as in any process of a container's image: every call is the driver's own."""
    env = environment(None) | {"GPUSHARE_SIM_DIR": str(sim.directory)}
    here, there = run_all(sim, None, [program], env, entry, "main", False), bare(entry, "main")
    assert failures(here) == []
    for name, answer in here.items():
        truth = there[name]
        assert (answer.report["result"], answer.report["calls"]) == (truth.report["result"], truth.report["calls"]), (
            name
        )
        assert answer.books == truth.books, name


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param("main", marks=BY_ORIGIN["main"]),
        *(pytest.param(origin, marks=[BY_ORIGIN[origin], pytest.mark.slow]) for origin in ("constructor", "late")),
    ],
)
def test_without_the_lease(
    sim: Simulator,
    grant: Grant,
    program: Path,
    bare: Callable[..., dict[str, Answer]],
    environment: Callable[..., dict[str, str]],
    origin: str,
) -> None:
    """Every call that uses the device waits for the lease; no other call does, including copies over the link."""
    answers = run_all(sim, grant, [program], environment(grant), "linked", origin, True)
    agree(answers, bare("linked", origin))


def test_a_row_without_a_snippet_fails_the_build() -> None:
    rows, found = list(HOOKS), gen_rows.snippets()
    assert gen_rows.problems(rows, found) == []
    for name, alone in (
        ("cuMemAlloc_v2", ["cuMemAlloc", "cuMemAlloc_v2"]),
        ("cuGraphLaunch", ["cuGraphLaunch", "cuGraphLaunch_ptsz"]),
        ("cuGetExportTable", ["cuGetExportTable"]),
    ):
        without = {key: value for key, value in found.items() if key != name}
        missing = [f"{row}: no snippet in tests/interposer/rows" for row in alone]
        assert gen_rows.problems(rows, without) == missing
        assert len(gen_rows.problems([row for row in rows if row != name], found)) == 1
    group, _ = found["cuMemAlloc_v2"]
    silent = found | {"cuMemAlloc_v2": (group, "  context(r);\n")}
    assert gen_rows.problems(rows, silent) == ["cuMemAlloc_v2: its snippet in memory.c does not call it"]


def test_a_snippet_stands_for_functions_that_differ_in_types_only() -> None:
    found = gen_rows.snippets()
    assert gen_rows.lender("cuMemcpy2DUnaligned", found) == "cuMemcpy2DAsync_v2"
    assert gen_rows.adapter("cuLaunchKernel", "cuLaunchKernel_ptsz") is None, "the same types: no adapter"
    narrowed = gen_rows.adapter("cuMemAllocPitch_v2", "cuMemAllocPitch")
    assert "own_call.cuMemAllocPitch(&own_dptr, &own_pPitch, (unsigned int)WidthInBytes" in narrowed
    with pytest.raises(gen_rows.Misfit):
        gen_rows.adapter("cuCtxCreate_v2", "cuCtxCreate_v4")
