#!/usr/bin/env python3
"""Generates the derived half of the NVML view from ml.tsv and native/api/nvml.txt: gen_ml.py OUT_DIR.

ml_names.h   an index for each name
ml_names.c   the names, and the fixed answers of functions without a handler
ml.md        the documentation table
ml_forward.S a forwarder for each name that has no handler of its own

It fails if a function without a row looks as if it changes the device or reveals other devices or processes.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "driver"), str(HERE.parent.parent / "api")]
import forward  # type: ignore[import-not-found]  # noqa: E402 - found through the path set above
import table  # type: ignore[import-not-found]  # noqa: E402

KINDS = ("init", "devices", "memory", "processes", "utilisation", "write", "pass")
CODES = {
    "refused": "NVML_ERROR_NO_PERMISSION",
    "unsupported": "NVML_ERROR_NOT_SUPPORTED",
    "invalid": "NVML_ERROR_INVALID_ARGUMENT",
}
END = r"(?=[A-Z_0-9]|$)"
# Matched against names. Event sets and samples belong to the caller, but only a row can exempt their functions.
LOOKS = {
    "change the device": re.compile(
        r"^(?!nvml\w*?(Get|Query|Is)[A-Z]).*(Set|Reset|Clear|Freeze|Modify|Remove|Create|Destroy|Activate|Update|Write"
        rf"|Force|Discover|Enable|Disable|Register|Validate|Alloc|Free){END}"
    ),
    "tell of other devices": re.compile(
        r"HandleBy|DeviceHandle|(Device|Unit)GetCount|DeviceGetIndex$|Excluded|Blacklist|^nvmlUnit|GpuSet|NearestGpus"
        r"|CommonAncestor|P2P|SameBoard|Remote|DrainState|CPER|Register\w*Events"
    ),
    "tell of processes": re.compile(r"Process(?!or)|Accounting|Sessions|ContextData|ActiveVgpus|VgpuInstanceGet"),
    "tell how much memory is used": re.compile(r"MemoryInfo|MemoryUsage|MemoryLimits|FbUsage|FieldValues"),
    "tell how busy the device is": re.compile(
        r"Utili[sz]ation|Samples|SampleGet|MetricsGet|Throughput|DynamicPstates|SchedulerLog|EncoderStats|FBCStats"
    ),
}
DEFINED = re.compile(r"^GS_ML\((\w+),", re.M)


@dataclass(frozen=True, slots=True)
class Row:
    symbol: str
    kind: str
    handler: str  # "file.c", "refused", "unsupported", or the reason of a pass
    device: bool  # of refused and unsupported: the first argument is a device


def read_rows(path: Path = HERE / "ml.tsv") -> list[Row]:
    rows = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            symbol, kind, handler, *first = line.split("\t")
            rows.append(Row(symbol, kind, handler, first == ["device"]))
    return rows


def defined() -> set[tuple[str, str]]:
    """(file, function) of every handler that is defined."""
    return {(path.name, name) for path in HERE.glob("*.c") for name in DEFINED.findall(path.read_text())}


def problems(rows: list[Row], names: list[str], handlers: set[tuple[str, str]]) -> list[str]:
    """Returns the faults of the table; empty if it is complete."""
    named = [row.symbol for row in rows]
    found = [f"ml.tsv: {name} is not in nvml.txt" for name in named if name not in names]
    found += [f"ml.tsv: {name} has two rows" for name in sorted(set(named)) if named.count(name) > 1]
    for row in rows:
        if row.kind not in KINDS:
            found.append(f"ml.tsv: {row.symbol}: no such kind {row.kind!r}")
        elif row.kind == "pass" and len(row.handler.split()) < 2:
            found.append(f"ml.tsv: {row.symbol}: why is it passed?")
        elif row.kind != "pass" and row.handler not in CODES and (row.handler, row.symbol) not in handlers:
            found.append(f"ml.tsv: {row.symbol}: there is no such handler in {row.handler}")
    written = {(row.handler, row.symbol) for row in rows}
    found += [f"{file}: {name} has no row in ml.tsv" for file, name in sorted(handlers - written)]
    for name in sorted(set(names) - set(named)):
        for what, rule in LOOKS.items():
            if rule.search(name):
                found.append(f"ml.tsv: {name} looks as if it could {what}: give it a row")
    return found


def answer(row: Row | None) -> str:
    if row is None or row.handler not in CODES:
        return "{0, false}"
    return f"{{{CODES[row.handler]}, {str(row.device).lower()}}}"


def listing(rows: list[Row]) -> str:
    """The documentation table: what happens to each function, by kind."""
    lines = ["| kind | function | handler, fixed answer, or why it is forwarded |", "|---|---|---|"]
    for row in sorted(rows, key=lambda row: (KINDS.index(row.kind), row.symbol)):
        lines.append(f"| {row.kind} | `{row.symbol}` | {CODES.get(row.handler, row.handler)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    out, names, rows = Path(sys.argv[1]), table.nvml(), read_rows()
    if wrong := problems(rows, names, defined()):
        sys.exit("\n".join(wrong))
    by_name = {row.symbol: row for row in rows}
    head = "/* Generated by gen_ml.py. */"
    lines = [head, "#ifndef GPUSHARE_ML_NAMES_H", "#define GPUSHARE_ML_NAMES_H", "enum gs_ml_index {"]
    lines += [f"  GS_ML_{name}," for name in names] + ["  GS_ML_COUNT", "};", "#endif", ""]
    (out / "ml_names.h").write_text("\n".join(lines))
    lines = [head, '#include "interposer/nvml/ml.h"', "const char *const gs_ml_names[GS_ML_COUNT] = {"]
    lines += [f'  "{name}",' for name in names] + ["};", "const struct gs_ml_answer gs_ml_answers[GS_ML_COUNT] = {"]
    lines += [f"  {answer(by_name.get(name))}, /* {name} */" for name in names] + ["};", ""]
    (out / "ml_names.c").write_text("\n".join(lines))
    (out / "ml.md").write_text(listing(rows))
    handled = {row.symbol for row in rows if row.kind != "pass" and row.handler not in CODES}
    (out / "ml_forward.S").write_text(forward.file(forward.real(names), forward.forwarders(names, handled)))


if __name__ == "__main__":
    main()
