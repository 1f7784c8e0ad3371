"""The libraries as files: they need only old libc symbols and export every API name; the table is complete."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import paths

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "native"
sys.path[:0] = [str(NATIVE / "interposer" / "hooks"), str(NATIVE / "interposer" / "nvml"), str(NATIVE / "api")]
import gen_hooks  # noqa: E402 - sys.path is set above
import gen_ml  # noqa: E402
import table  # noqa: E402

LIBRARIES = {paths.INTERPOSER: "libcuda.so.1", paths.INTERPOSER_ML: "libnvidia-ml.so.1"}
LIBC_FAMILY = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_old_symbols_only(library: Path) -> None:
    versions = {
        tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", output("objdump", "-T", library))
    }
    assert versions
    assert max(versions) <= (2, 17)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_dynamic_section(library: Path) -> None:
    section = output("readelf", "-d", library)
    assert set(re.findall(r"NEEDED.*\[(.*)\]", section)) <= LIBC_FAMILY
    assert re.findall(r"SONAME.*\[(.*)\]", section) == [LIBRARIES[library]]
    assert "NODELETE" in section
    assert "SYMBOLIC" in section
    assert "RPATH" not in section
    assert "RUNPATH" not in section


def exported(library: Path) -> set[str]:
    return {line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()}


def test_exports() -> None:
    ours = {"gpushare_interposer"}
    driver = {symbol.name for symbol in table.driver()} | {symbol.name for symbol in table.graphics()}
    assert exported(paths.INTERPOSER) == driver | ours | {"gpushare_total_bytes"}
    assert exported(paths.INTERPOSER_ML) == set(table.nvml()) | ours


def test_the_table_is_complete() -> None:
    assert gen_hooks.problems(gen_hooks.read_rows(), table.driver()) == []


@pytest.mark.parametrize(
    "name", ["cuMemAlloc_v2", "cuLaunchKernelEx_ptsz", "cuMemcpyBatchAsync", "cuGraphLaunch", "cuMemCreate"]
)
def test_a_missing_row_fails_the_build(name: str) -> None:
    rows = [row for row in gen_hooks.read_rows() if row.symbol != name]
    assert any(name in problem for problem in gen_hooks.problems(rows, table.driver()))


def test_a_new_function_fails_the_build() -> None:
    new = [
        table.Symbol(name, name, 14000, "", "void") for name in ("cuMemAllocFancy", "cuLaunchFancy", "cuFancyCopyAsync")
    ]
    wrong = gen_hooks.problems(gen_hooks.read_rows(), table.driver() + new)
    assert len(wrong) == len(new)


def test_a_family_and_its_rows_go_together() -> None:
    rows, families = gen_hooks.read_rows(), gen_hooks.read_families()
    fewer = {name: family for name, family in families.items() if name != "@copy"}
    assert any("cuMemcpyAsync" in problem for problem in gen_hooks.problems(rows, table.driver(), fewer))
    unused = [row for row in rows if row.handler != "@graph_trim"]
    assert any("@graph_trim" in problem for problem in gen_hooks.problems(unused, table.driver()))
    short = [dataclasses.replace(row, arguments=()) if row.symbol == "cuMemcpyAsync" else row for row in rows]
    assert any("cuMemcpyAsync" in problem for problem in gen_hooks.problems(short, table.driver()))


def test_a_family_needs_no_more_than_it_declares(tmp_path: Path) -> None:
    header = tmp_path / "family.h"
    header.write_text(
        "struct gs_around_keeps {\n  int a;\n};\n"
        "CUresult gs_before_keeps(struct gs_around_keeps *around, CUfunction function,\n"
        "                         uint64_t key);\n"
        "CUresult gs_after_keeps(struct gs_around_keeps *around, CUresult result);\n"
        "CUresult gs_before_plain(CUstream stream);\n"
        "CUresult gs_before_empty(void);\n"
        "CUresult gs_do_itself(const struct gs_call *call, CUstream stream);\n"
    )
    found = gen_hooks.read_families([header])
    function_and_key = ("CUfunction function", "uint64_t key")
    assert found["@keeps"] == gen_hooks.Family("@keeps", "family.h", function_and_key, keeps=True, ends=True)
    assert found["@plain"] == gen_hooks.Family("@plain", "family.h", ("CUstream stream",))
    assert found["@empty"] == gen_hooks.Family("@empty", "family.h", ())
    assert found["=itself"] == gen_hooks.Family("=itself", "family.h", ("CUstream stream",))


def test_twins_are_of_the_calling_threads_stream() -> None:
    rows = {row.symbol: row for row in gen_hooks.read_rows()}
    assert rows["cuMemcpyHtoD_v2_ptds"].arguments == ("GS_COPY_IN", "ByteCount", "CU_STREAM_PER_THREAD")
    assert rows["cuMemcpyAsync_ptsz"].arguments == ("gs_direction(dst, src)", "ByteCount", "gs_ptsz(hStream)")
    assert rows["cuGraphLaunch"].arguments == ("hGraph", "hStream")
    assert rows["cuGraphLaunch_ptsz"].arguments == ("hGraphExec", "gs_ptsz(hStream)")
    assert rows["cuSignalExternalSemaphoresAsync_ptsz"].kind == "pass"


def test_the_nvml_table_is_complete() -> None:
    assert gen_ml.problems(gen_ml.read_rows(), table.nvml(), gen_ml.defined()) == []


@pytest.mark.parametrize(
    "name",
    [row.symbol for row in gen_ml.read_rows() if row.kind in ("write", "memory", "processes", "utilisation")],
)
def test_a_missing_nvml_row_fails_the_build(name: str) -> None:
    rows = [row for row in gen_ml.read_rows() if row.symbol != name]
    assert any(name in problem for problem in gen_ml.problems(rows, table.nvml(), gen_ml.defined()))


def test_a_new_nvml_function_fails_the_build() -> None:
    new = [
        "nvmlDeviceSetFancyMode",
        "nvmlDeviceResetFancyCounters_v1",
        "nvmlFancyClearAll",
        "nvmlDeviceGetFancyProcesses",
        "nvmlDeviceGetMemoryInfo_v3",
        "nvmlDeviceGetFancyUtilization_v2",
    ]
    wrong = gen_ml.problems(gen_ml.read_rows(), table.nvml() + new, gen_ml.defined())
    assert len(wrong) == len(new)


def test_a_handler_and_its_row_go_together() -> None:
    rows, handlers = gen_ml.read_rows(), gen_ml.defined()
    gone = handlers - {("memory.c", "nvmlDeviceGetMemoryInfo")}
    assert any("nvmlDeviceGetMemoryInfo:" in problem for problem in gen_ml.problems(rows, table.nvml(), gone))
    more = handlers | {("memory.c", "nvmlDeviceGetName")}
    assert any("nvmlDeviceGetName has no row" in problem for problem in gen_ml.problems(rows, table.nvml(), more))


def test_passed_functions_say_why() -> None:
    passed = [row for row in gen_hooks.read_rows() if row.kind == "pass"]
    assert passed
    assert all(len(row.handler.split()) >= 2 for row in passed)
