"""cuGetProcAddress returns the handler of exactly the ABI that the driver would return, and the driver's pointer
otherwise."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pages.handmade import Grant
from run import built
from values import hooktable

from gpushare import paths

HERE = Path(__file__).resolve().parent
API = HERE.parents[2] / "native" / "api"
SIMULATED = 13000  # the version of the simulated driver, which exports newer functions but does not return them by name

# Runs in a process with the interposer preloaded: looks up the names on stdin, prints the library of each pointer.
ASK = """
import ctypes, json, sys
class Info(ctypes.Structure):
    text, address = ctypes.c_char_p, ctypes.c_void_p
    _fields_ = [("file", text), ("base", address), ("name", text), ("at", address)]
libc = ctypes.CDLL(None)
driver = ctypes.CDLL("libcuda.so.1")
def describe(pointer):
    info = Info()
    libc.dladdr(ctypes.c_void_p(pointer), ctypes.byref(info))
    name = (info.name or b"").decode()
    return [(info.file or b"").decode().rpartition("/")[2], name if info.at == pointer else ""]
answers = []
for base, version, flags in json.load(sys.stdin):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    get = driver.cuGetProcAddress_v2
    code = get(base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status))
    answers.append([code, *(describe(pointer.value) if pointer.value else ["", ""])])
print(json.dumps(answers))
"""
Questions = list[tuple[str, int, int]]


def ask(env: dict[str, str], questions: Questions) -> list[list[Any]]:
    return list(json.loads(asked(env, questions).stdout))


def asked(env: dict[str, str], questions: Questions) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(questions), env=env, capture_output=True, text=True, check=True
    )


def rows() -> list[list[str]]:
    return [line.split("\t") for line in (API / "driver.tsv").read_text().splitlines() if not line.startswith("#")]


def hooked() -> set[str]:
    return {row.symbol for row in hooktable.ROWS if row.kind != "pass"}


def test_every_versioned_name(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    table = [(name, base, int(version), variant) for name, base, version, variant, _ in rows() if int(version)]
    questions = [(base, version, 2 if variant else 0) for _, base, version, variant in table]
    ours = hooked()
    answers = ask(environment(grant), questions)
    found = 0
    for (name, base, version, _), (code, file, symbol) in zip(table, answers, strict=True):
        if version > SIMULATED:
            assert code != 0, f"{base} {version}: newer than the driver"
            continue
        assert code == 0, f"{base} {version}: {code}"
        expected = paths.INTERPOSER.name if name in ours else "libcuda.so.1"
        assert (file, symbol) == (expected, name), f"{base} {version} is {symbol} of {file}"
        found += name in ours
    assert found > 150


def test_a_name_without_a_per_thread_variant(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    answers = ask(
        environment(grant), [("cuMemAlloc", 13000, 2), ("cuMemAlloc", 13000, 0), ("cuLaunchKernel", 13000, 2)]
    )
    assert [name for _, _, name in answers] == ["cuMemAlloc_v2", "cuMemAlloc_v2", "cuLaunchKernel_ptsz"]


@pytest.fixture
def fake_driver(grant: Grant) -> Callable[[int], None]:
    """Puts a driver of the given version in place of the grant's driver."""

    def place(version: int) -> None:
        (grant.directory / "driver").unlink()
        (grant.directory / "driver").symlink_to(built.program(f"fakecuda-{version}"))

    return place


def test_an_older_driver(
    grant: Grant, environment: Callable[..., dict[str, str]], fake_driver: Callable[[int], None]
) -> None:
    """A program built for CUDA 13 requests 13.0; this driver has nothing newer than 12.2, so it returns its third
    ABI."""
    fake_driver(12020)
    answers = ask(environment(grant), [("cuCtxCreate", 13000, 0), ("cuCtxCreate", 3020, 0), ("cuMemAlloc", 13000, 0)])
    assert [name for _, _, name in answers] == ["cuCtxCreate_v3", "cuCtxCreate_v2", "cuMemAlloc_v2"]


def test_a_newer_driver(
    grant: Grant, environment: Callable[..., dict[str, str]], fake_driver: Callable[[int], None]
) -> None:
    """An ABI newer than the table cannot be handled; a function whose ABI has not changed still is."""
    fake_driver(14050)
    questions = [
        ("cuMemAlloc", 14050, 0),
        ("cuMemAlloc", 13050, 0),
        ("cuCtxCreate", 14050, 0),
        ("cuNewAllocAsync", 14050, 0),
    ]
    answers = ask(environment(grant), questions)
    assert answers[0][2] == "alloc_14000"
    assert answers[1][2] == "cuMemAlloc_v2"
    assert answers[2][2] == "cuCtxCreate_v4"
    assert answers[3][2] == "new_14050"


def test_what_came_between_two_major_versions(
    grant: Grant, environment: Callable[..., dict[str, str]], fake_driver: Callable[[int], None]
) -> None:
    """A driver of 13.2: its functions of 13.1 and 13.2 are handled, those of 13.0 as before."""
    fake_driver(13020)
    asked_for = [
        ("cuMemcpyWithAttributesAsync", version, flags) for version in (13000, 13020, 13050) for flags in (0, 2)
    ]
    asked_for += [("cuLaunchHostFunc", version, 0) for version in (13000, 13010, 13050)]
    answers = ask(environment(grant), asked_for)
    assert [(file, name) for _, file, name in answers] == [
        ("", ""),
        ("", ""),
        *[
            (paths.INTERPOSER.name, f"cuMemcpyWithAttributesAsync{variant}")
            for _ in range(2)
            for variant in ("", "_ptsz")
        ],
        *[(paths.INTERPOSER.name, f"cuLaunchHostFunc{version}") for version in ("", "_v2", "_v2")],
    ]


def test_what_passes_uncounted_is_reported_once(
    grant: Grant, environment: Callable[..., dict[str, str]], fake_driver: Callable[[int], None]
) -> None:
    """One line per process, and none for functions that neither allocate nor submit work."""
    fake_driver(14050)
    names = ["cuNewQuery", "cuNewAllocAsync", "cuLaunchNew", "cuHiddenCreate", "cuMemAlloc"]
    questions = [(name, version, 0) for name in names for version in (14050, 14060, 14050)] * 3
    questions += [("cuCtxCreate", 14050, 0), ("cuHiddenCreate", 12000, 0)]
    for _ in range(2):
        run = asked(environment(grant), questions)
        (line,) = run.stderr.splitlines()
        assert "such as cuNewAllocAsync (CUDA 14050)" in line
        assert line.endswith("they are neither charged nor gated")
        answers = json.loads(run.stdout)
        assert all(code == 0 for code, _, _ in answers), "they pass all the same"
        assert [name for _, _, name in answers[:12:3]] == ["query_14050", "new_14050", "launch_14050", "hidden_11000"]


def test_names_of_other_headers_are_not_reported(
    grant: Grant, environment: Callable[..., dict[str, str]], fake_driver: Callable[[int], None]
) -> None:
    """Names of cudaGL.h: a driver knows them, and every CUDA runtime looks them up when it starts."""
    fake_driver(13000)
    run = asked(environment(grant), [("cuGLCtxCreate", 13000, 0)])
    assert json.loads(run.stdout)[0][2] == "graphics_3020"
    assert run.stderr == ""


def test_no_known_name_is_reported(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    questions = [(base, version, flags) for _, base, *_ in rows() for version in (11080, 13000) for flags in (0, 2)]
    assert asked(environment(grant), questions).stderr == ""


def test_unknown_names_and_versions(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    answers = ask(environment(grant), [("cuNoSuchThing", 13000, 0), ("", 0, 0), ("cuMemAlloc", 1000, 0)])
    assert all(code != 0 for code, _, _ in answers)


def test_export_tables_are_the_drivers(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    [answer] = ask(environment(grant), [("cuGetExportTable", 3000, 0)])
    assert answer[1:] == ["libcuda.so.1", "cuGetExportTable"]
    assert os.path.realpath(paths.SIM_LIB_DIR / "libcuda.so.1") != os.path.realpath(paths.INTERPOSER)


def test_functions_that_the_driver_does_not_export(
    grant: Grant, environment: Callable[..., dict[str, str]], fake_driver: Callable[[int], None]
) -> None:
    """They are found by its cuGetProcAddress if it is new enough for that ABI."""
    fake_driver(12020)
    call = "import ctypes; d = ctypes.CDLL('libcuda.so.1'); print(d.cuCtxAttach(), d.cuCtxGetDevice_v2())"
    run = subprocess.run(
        [sys.executable, "-c", call], env=environment(grant), capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["2000", "500"]


# Runtimes from 3.2 to 13 request the version they were built with, and call the pointer with that version's signature.
CREATE = """
import ctypes, json
driver = ctypes.CDLL("libcuda.so.1")
def must(code):
    assert code == 0, code
must(driver.cuInit(0))
made = []
def create(version, *arguments):
    pointer = ctypes.c_void_p()
    must(driver.cuGetProcAddress_v2(b"cuCtxCreate", ctypes.byref(pointer), version, ctypes.c_uint64(0), None))
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[type(one) for one in arguments])(pointer.value)
    context, flags, free, total = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_size_t(), ctypes.c_size_t()
    code = function(ctypes.addressof(context), *arguments)
    must(driver.cuCtxGetFlags(ctypes.byref(flags)))
    must(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    made.append([version, code, bool(context.value), flags.value & 7, total.value - free.value])
number, null, device = ctypes.c_uint, ctypes.c_void_p(0), ctypes.c_int(0)
create(3020, number(1), device)
create(10000, number(2), device)
create(11040, null, ctypes.c_int(0), number(4), device)
create(11080, null, ctypes.c_int(0), number(1), device)
create(12040, null, ctypes.c_int(0), number(2), device)
create(12050, null, number(4), device)
create(12080, null, number(1), device)
create(13000, null, number(2), device)
print(json.dumps(made))
"""


def test_each_version_creates_a_context(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    """The function whose parameters differ most between versions: a wrong version would take a pointer for a flag."""
    direct = {**environment(None, ""), "GPUSHARE_SIM_DIR": str(grant.directory / "sim")}
    runs = []
    for env in (direct, environment(grant)):
        run = subprocess.run([sys.executable, "-c", CREATE], env=env, capture_output=True, text=True, check=True)
        assert run.stderr == ""
        runs.append([row[:4] for row in json.loads(run.stdout)])
    assert runs[0] == runs[1]
    made = json.loads(run.stdout)
    assert [flags for _, _, _, flags, _ in made] == [1, 2, 4, 1, 2, 4, 1, 2]
    used = [used for *_, used in made]
    assert [after - before for before, after in pairwise(used)] == [16 << 20] * 7, "each is charged"
