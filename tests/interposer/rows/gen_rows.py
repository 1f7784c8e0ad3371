#!/usr/bin/env python3
"""Generates the rows that tests call: gen_rows.py OUT_DIR. Fails and names the row if nothing calls one of hooks.tsv.

A row has a snippet of its own, or that of a function which does the same with wider types or more parameters
(`lender`). The snippet then calls an adapter, generated from the parameters of both in native/api/driver.tsv, which
calls the row's function.

api.h        `struct calls` with a pointer per row, prototypes of the snippets
registry.c   the adapters, and the rows in the order of hooks.tsv
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "native"
sys.path[:0] = [str(NATIVE / "interposer" / "hooks"), str(NATIVE / "api")]
import gen_hooks  # type: ignore[import-not-found]  # noqa: E402 - sys.path is set above
import table  # type: ignore[import-not-found]  # noqa: E402

SNIPPET = re.compile(r"^void row_(\w+)\(struct rows \*r\) \{(?: (.*?) |\n(.*?)^)\}$", re.M | re.S)
TYPES = (NATIVE / "api" / "gs_cuda_types.h").read_text()
SYMBOLS = {symbol.name: symbol for symbol in table.driver()}
# From a function's base name that of one which does the same in a stream, with wider elements or with options.
ALIKE = (
    (r"(cuMemsetD|cuMemsetD2D)(8|16|32)(Async)?", r"\g<1>32Async"),
    (r"(cuStreamWaitValue|cuStreamWriteValue)32", r"\g<1>64"),
    (r"(cuMemcpy\w*?|cuLaunchGrid)(Unaligned)?", r"\1Async"),
    (r"cuEventRecord", "cuEventRecordWithFlags"),
    (r"cuLaunchCooperativeKernel", "cuLaunchKernel"),
    (r"cuModuleLoadData", "cuModuleLoadDataEx"),
)


def snippets(directory: Path = HERE / "snippets") -> dict[str, tuple[str, str]]:
    """symbol -> (group, body)"""
    found = {}
    for file in sorted(directory.glob("*.c")):
        for symbol, line, body in SNIPPET.findall(file.read_text()):
            found[symbol] = (file.stem, line or body)
    return found


def parameters(symbol: str) -> list[tuple[str, str]]:
    """(type, name) of each parameter."""
    text = SYMBOLS[symbol].parameters
    names = gen_hooks.parameter_names(text)
    parts = [] if text == "void" else text.split(",")
    types = [part.strip().removesuffix(name).strip() for part, name in zip(parts, names, strict=True)]
    return [(re.sub(r"\s*\*", " *", kind), name) for kind, name in zip(types, names, strict=True)]


def fields(struct: str) -> list[str]:
    body = re.search(rf"typedef struct {struct}_st {{(.*?)}} {struct};", TYPES, re.S)
    assert body, struct
    return re.findall(r"(\w+)\s*(?=[,;])", body[1])


class Misfit(Exception):
    """The function does not take what the snippet gives."""


NARROWER = {"CUdeviceptr": "CUdeviceptr_v1", "size_t": "unsigned int", "unsigned int": "unsigned short"}
NUMBERS = {*NARROWER, *NARROWER.values(), "cuuint32_t", "cuuint64_t", "unsigned char"}


def converted(wide: str, narrow: str, name: str) -> tuple[str, str, str]:
    """What stands before the call, its argument, and what stands after it, to give a parameter as one of type
    `narrow`."""
    if wide == narrow:
        return "", name, ""
    if wide in NUMBERS and narrow in NUMBERS:
        return "", f"({narrow}){name}", ""
    if (wide.removesuffix(" *"), narrow.removesuffix(" *")) in NARROWER.items():
        return f"  {narrow.removesuffix(' *')} own_{name} = 0;", f"&own_{name}", f"  *{name} = own_{name};"
    struct = narrow.removeprefix("const ").removesuffix(" *")
    if struct.endswith("_v1") and wide == narrow.replace("_v1", ""):
        same = ", ".join(f".{field} = {name}->{field}" for field in fields(struct))
        return f"  const {struct} own_{name} = {{{same}}};", f"&own_{name}", ""
    raise Misfit


def adapter(lender: str, row: str) -> str | None:
    """A function with the lender's parameters that calls the row's; None if their types are the same."""
    given, taken = parameters(lender), parameters(row)
    if [kind for kind, _ in given] == [kind for kind, _ in taken]:
        return None
    named = {name for _, name in taken}
    choices = (
        given,
        [(kind, name) for kind, name in given if name in named],
        [(kind, name) for kind, name in given if kind != "CUstream"],
    )
    used = next((choice for choice in choices if len(choice) == len(taken)), None)
    if used is None:
        raise Misfit
    parts = [converted(kind, narrow, name) for (kind, name), (narrow, _) in zip(used, taken, strict=True)]
    before, arguments, after = zip(*parts, strict=True) if parts else ((), (), ())
    lines = [f"static CUresult {row}_as_{lender}({SYMBOLS[lender].parameters}) {{"]
    lines += [f"  (void){name};" for kind, name in given if (kind, name) not in used]
    lines += [
        *filter(None, before),
        f"  CUresult result = own_call.{row}({', '.join(arguments)});",
        *filter(None, after),
    ]
    return "\n".join([*lines, "  return result;", "}"])


def lender(row: str, found: dict[str, tuple[str, str]]) -> str | None:
    """The function whose snippet calls this row: the row's own, its twin's, another version's, or one alike."""
    if row in found:
        return row
    base = SYMBOLS[row].base
    others = [re.sub(rf"^{pattern}$", other, base) for pattern, other in ALIKE]
    for name in (base, *(other for other in others if other != base)):
        for symbol in sorted(found, key=lambda symbol: (symbol != SYMBOLS[row].name.rpartition("_")[0], symbol)):
            if SYMBOLS[symbol].base == name:
                try:
                    adapter(symbol, row)
                except Misfit:
                    continue
                return symbol
    return None


def problems(rows: list[str], found: dict[str, tuple[str, str]]) -> list[str]:
    wrong = [f"{row}: no snippet in tests/interposer/rows" for row in rows if not lender(row, found)]
    wrong += [
        f"{name}: a snippet in {found[name][0]}.c without a row in hooks.tsv" for name in found.keys() - set(rows)
    ]
    for name, (group, body) in found.items():
        if not re.search(rf"\b(start|work)\(r\)->{name}\(", body):
            wrong.append(f"{name}: its snippet in {group}.c does not call it")
    return wrong


def api(rows: list[str], found: dict[str, tuple[str, str]]) -> str:
    lines = ["/* Generated by gen_rows.py. */", "#ifndef ROWS_API_H", "#define ROWS_API_H", '#include "sim_api.h"']
    lines += ["struct calls {", *(f"  CUresult (*{row})({SYMBOLS[row].parameters});" for row in rows), "};"]
    lines += ["struct rows;", *(f"void row_{row}(struct rows *r);" for row in found), "#endif", ""]
    return "\n".join(lines)


def registry(rows: list[str], found: dict[str, tuple[str, str]]) -> str:
    adapters, entries = [], []
    for row in rows:
        symbol, called = SYMBOLS[row], lender(row, found)
        assert called
        between = adapter(called, row)
        if between:
            adapters.append(between)
        kinds = {kind for kind, _ in parameters(row)}
        values = {
            "group": f'"{found[called][0]}"',
            "symbol": f'"{row}"',
            "base": f'"{symbol.base}"',
            "version": symbol.version,
            "per_thread": int(symbol.variant != ""),
            "takes_stream": int("CUstream" in kinds),
            "narrow": int(any("_v1" in kind for kind in kinds)),
            "own_slot": f"offsetof(struct calls, {row})",
            "slot": f"offsetof(struct calls, {called})",
            "linked": f"(void *){row}",
            "adapter": f"(void *){row}_as_{called}" if between else "NULL",
            "snippet": f"row_{called}",
        }
        entries.append("  {" + ", ".join(f".{name} = {value}" for name, value in values.items()) + "},")
    lines = ["/* Generated by gen_rows.py. */", '#include "rows.h"', *adapters]
    lines += ["const struct row row_table[] = {", *entries, "};"]
    return "\n".join([*lines, "const unsigned row_count = sizeof row_table / sizeof *row_table;", ""])


def main() -> None:
    out = Path(sys.argv[1])
    rows = [row.symbol for row in gen_hooks.read_rows()]
    found = snippets()
    if wrong := problems(rows, found):
        sys.exit("\n".join(sorted(wrong)))
    out.mkdir(parents=True, exist_ok=True)
    (out / "api.h").write_text(api(rows, found))
    (out / "registry.c").write_text(registry(rows, found))


if __name__ == "__main__":
    main()
