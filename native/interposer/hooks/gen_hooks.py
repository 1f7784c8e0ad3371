#!/usr/bin/env python3
"""Generates handlers from hooks.tsv and native/api: gen_hooks.py OUT_DIR.

hooks.h         prototypes of all handlers. gs_<symbol> has the exported name (through an asm label), so inside the
                interposer a call of gs_<symbol> calls the handler; the real function is called through gs_real
hooks.c         generated handlers
hooks_lookup.c  the table behind cuGetProcAddress
hooks_forward.S an exported forwarder for every symbol without a handler
hooks.md        the documentation table

A row of hooks.tsv (tab separated):
  symbol  kind  file.c                 gs_<symbol> is written by hand in file.c
  symbol  kind  @name  expression...   gs_<symbol> is generated: gs_before_<name>(&around, expressions), the real call
                                       unless that returned an error, gs_after_<name>(&around, result). A header of the
                                       interposer declares or defines them and struct gs_around_<name>, or only what
                                       the family needs: no struct, no gs_after_<name>. Expressions use the parameter
                                       names of driver.tsv.
  symbol  kind  =name  expression...   gs_<symbol> is generated: gs_do_<name>(&call, expressions), which makes the real
                                       call itself, by gs_call. While this process has not joined a grant, the call is
                                       forwarded.
  symbol  pass  reason                 examined, and forwarded on purpose
A kind that ends in "!" is that of a call for which the driver looks at device memory although the call submits nothing:
it waits while movable memory is hosted or moves (process/passage/passage.h).
One that ends in "?" is that of a call whose answer the program waits for, which is counted (process/answers.h); a
handler of a file.c counts it itself. Copies are counted with their bytes, in their families.
The _ptds or _ptsz twin of a symbol has the same row, with the calling thread's default stream. Symbols without a row
are forwarded.

It fails if a function without a row looks like an allocation or a submission, because it would not be charged; if no
header declares the family of a row; and if a family has no rows.
"""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
INTERPOSER, API = HERE.parent, HERE.parent.parent / "api"
sys.path[:0] = [str(INTERPOSER / "driver"), str(API)]
import forward  # type: ignore[import-not-found]  # noqa: E402 - found through the path set above
import gen_driver  # type: ignore[import-not-found]  # noqa: E402
import table  # type: ignore[import-not-found]  # noqa: E402

# Matched against names: functions that allocate device memory, and functions that submit work. Queries do neither, nor
# do setters of graph nodes, which matter only when the graph is launched.
ALLOCATES = re.compile(
    r"^cu(Mem(Alloc|Create|PoolCreate|PoolImport|Import|Map|Free|Release|Host(Alloc|Register)|AddressReserve)"
    r"|Array3?D?Create|MipmappedArrayCreate|Multicast(Create)|Ctx(Create|Destroy)|GreenCtxCreate"
    r"|DevicePrimaryCtx(Retain|Release|Reset)|IpcOpenMem|ImportExternalMemory|ExternalMemoryGetMapped|GraphAddMemAlloc)"
)
SUBMITS = re.compile(
    r"^cu(Launch|GraphLaunch|Memcpy|Memset|MemPrefetch|MemDiscard|MemBatch|Fabric|Stream(Write|Wait|Batch|Add|Attach)"
    r"|EventRecord|(Green)?Ctx(Record|Wait)Event|SignalExternal|WaitExternal)|Async(_v\d+)?(_ptsz)?$"
)

KINDS = (
    "lookup",
    "init",
    "alloc",
    "free",
    "pool",
    "map",
    "context",
    "report",
    "launch",
    "graph",
    "copy",
    "fill",
    "stream",
    "capture",
    "sync",
    "module",
    "pass",
)


FAMILY = re.compile(r"^(?:static inline )?CUresult gs_(before|after|do)_(\w+)\(([^;{]*)\)(?:;| {)", re.M)


@dataclass(frozen=True, slots=True)
class Row:
    symbol: str
    kind: str
    handler: str  # "file.c", "@name", "=name", or the reason of a pass
    arguments: tuple[str, ...]
    looks: bool = False  # the kind ends in "!"
    answers: bool = False  # it ends in "?"


@dataclass(frozen=True, slots=True)
class Family:
    """The functions that a header under native/interposer declares for the rows of one handler.

    "@name": gs_before_<name>, and gs_after_<name> (`ends`) where something is left to do after the call. `keeps`: they
    share a struct gs_around_<name>, which the header defines. "=name": gs_do_<name>, which makes the call itself.
    """

    handler: str
    header: str  # below native/
    parameters: tuple[str, ...]  # of C, for the row's expressions
    keeps: bool = False
    ends: bool = False

    @property
    def name(self) -> str:
        return self.handler[1:]


def read_families(headers: list[Path] | None = None) -> dict[str, Family]:
    """Returns what the headers declare, indexed by the handler that the rows name."""
    found = {}
    for header in sorted(INTERPOSER.rglob("*.h") if headers is None else headers):
        where = str(header.relative_to(INTERPOSER.parent)) if headers is None else header.name
        declared = {(when, name): parameters for when, name, parameters in FAMILY.findall(header.read_text())}
        for (when, name), parameters in declared.items():
            each = () if parameters == "void" else tuple(" ".join(one.split()) for one in parameters.split(","))
            if when == "do":
                found["=" + name] = Family("=" + name, where, each[1:])
            elif when == "before":
                keeps = bool(each) and each[0].startswith(f"struct gs_around_{name} *")
                found["@" + name] = Family("@" + name, where, each[keeps:], keeps, ("after", name) in declared)
    return found


def twin(row: Row, plain: table.Symbol, symbol: table.Symbol, family: Family | None) -> Row:
    """The row of a _ptds or _ptsz function, whose default stream is the calling thread's: equals that of the plain
    function, except for the names of parameters and for the stream."""
    names = zip(parameter_names(plain.parameters), parameter_names(symbol.parameters), strict=True)
    renamed = {before: after for before, after in names if before != after}

    def expression(text: str, parameter: str) -> str:
        text = re.sub(r"(?<![\w.>])[A-Za-z_]\w*", lambda found: renamed.get(found[0], found[0]), text)
        if not parameter.startswith("CUstream "):
            return text
        return "CU_STREAM_PER_THREAD" if text == "CU_STREAM_LEGACY" else f"gs_ptsz({text})"

    parameters = family.parameters if family else ()
    arguments = tuple(expression(text, parameter) for text, parameter in zip(row.arguments, parameters, strict=False))
    return replace(row, symbol=symbol.name, arguments=arguments)


def read_rows(path: Path = HERE / "hooks.tsv") -> list[Row]:
    """The rows of the table, each followed by that of its _ptds or _ptsz twin, if there is one."""
    rows = []
    symbols, families = {symbol.name: symbol for symbol in table.driver()}, read_families()
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            symbol, kind, handler, *arguments = line.split("\t")
            row = Row(symbol, kind.rstrip("!?"), handler, tuple(arguments), "!" in kind, "?" in kind)
            rows.append(row)
            for variant in ("ptds", "ptsz"):
                if other := symbols.get(f"{symbol}_{variant}"):
                    rows.append(twin(row, symbols[symbol], other, families.get(handler)))
    return rows


def problems(rows: list[Row], symbols: list[table.Symbol], families: dict[str, Family] | None = None) -> list[str]:
    """Returns the faults of the table; empty if it is complete."""
    found = []
    families = read_families() if families is None else families
    known = {symbol.name for symbol in symbols}
    named = [row.symbol for row in rows]
    found += [f"hooks.tsv: {name} is not in driver.tsv" for name in named if name not in known]
    found += [f"hooks.tsv: {name} has two rows" for name in sorted(set(named)) if named.count(name) > 1]
    for row in rows:
        if row.kind not in KINDS:
            found.append(f"hooks.tsv: {row.symbol}: no such kind {row.kind!r}")
        if row.kind != "pass" and not re.fullmatch(r"[@=][a-z_0-9]+|[a-z_/]+\.c", row.handler):
            found.append(f"hooks.tsv: {row.symbol}: handler {row.handler!r} is neither file.c nor @name nor =name")
        if row.handler[0] in "@=":
            family = families.get(row.handler)
            if family is None:
                found.append(f"hooks.tsv: {row.symbol}: no header declares {row.handler}")
            elif len(row.arguments) != len(family.parameters):
                found.append(f"hooks.tsv: {row.symbol}: {row.handler} takes {len(family.parameters)} expressions")
    for handler in sorted(families.keys() - {row.handler for row in rows}):
        found.append(f"{families[handler].header}: {handler} has no row in hooks.tsv")
    for name in sorted(known - set(named)):
        for rule, what in ((ALLOCATES, "allocate or free device memory"), (SUBMITS, "submit work")):
            if rule.search(name):
                found.append(f"hooks.tsv: {name} looks as if it could {what}: give it a handler or a pass row")
    return found


def header(symbols: list[table.Symbol], hooked: list[Row]) -> str:
    by_name = {symbol.name: symbol for symbol in symbols}
    lines = [
        "/* Generated by gen_hooks.py. */",
        "#ifndef GPUSHARE_HOOKS_H",
        "#define GPUSHARE_HOOKS_H",
        '#include "interposer/driver/driver.h"',
    ]
    lines += ["#pragma GCC visibility push(default)"]
    lines += [f'CUresult gs_{row.symbol}({by_name[row.symbol].parameters}) __asm__("{row.symbol}");' for row in hooked]
    lines += ["#pragma GCC visibility pop", "#endif", ""]
    return "\n".join(lines)


def parameter_names(parameters: str) -> list[str]:
    if parameters == "void":
        return []
    return [re.search(r"(\w+)\s*(\[\w*\])?$", parameter.strip())[1] for parameter in parameters.split(",")]  # type: ignore[index]


def wrapper(row: Row, symbol: table.Symbol, family: Family) -> list[str]:
    if family.handler.startswith("="):
        return wrapper_that_does(row, symbol, family)
    around = ["&around"] if family.keeps else []
    call = f"gs_real.{row.symbol}({', '.join(parameter_names(symbol.parameters))})"
    after = f"gs_after_{family.name}({', '.join([*around, call])})"
    return [
        f"CUresult gs_{row.symbol}({symbol.parameters}) {{",
        *([f"  struct gs_around_{family.name} around;"] if family.keeps else []),
        *(["  gs_touch_begin();"] if row.looks else []),
        f"  CUresult result = gs_before_{family.name}({', '.join([*around, *row.arguments])});",
        "  if (result == CUDA_SUCCESS)",
        f"    result = {after if family.ends else call};",
        *(["  gs_touch_end();"] if row.looks else []),
        *(["  gs_answered(result);"] if row.answers else []),
        "  return result;",
        "}",
    ]


def wrapper_that_does(row: Row, symbol: table.Symbol, family: Family) -> list[str]:
    names = parameter_names(symbol.parameters)
    passed = ", ".join(f"with->{name}" for name in names)
    return [
        f"struct with_{symbol.name} {{ {' '.join(f'{each.strip()};' for each in symbol.parameters.split(','))} }};",
        f"static CUresult make_{symbol.name}(const void *arguments) {{",
        f"  const struct with_{symbol.name} *with = arguments;",
        f"  return gs_real.{symbol.name}({passed});",
        "}",
        f"CUresult gs_{symbol.name}({symbol.parameters}) {{",
        "  CUresult result;",
        "  if (!gs_enter(&result))",
        f"    return result == CUDA_SUCCESS ? gs_real.{symbol.name}({', '.join(names)}) : result;",
        f"  const struct with_{symbol.name} with = {{{', '.join(names)}}};",
        f"  const struct gs_call call = {{make_{symbol.name}, &with}};",
        *(["  gs_touch_begin();"] if row.looks else []),
        f"  result = gs_do_{family.name}({', '.join(['&call', *row.arguments])});",
        *(["  gs_touch_end();"] if row.looks else []),
        *(["  gs_answered(result);"] if row.answers else []),
        "  return result;",
        "}",
    ]


def code(symbols: list[table.Symbol], hooked: list[Row], families: dict[str, Family]) -> str:
    by_name = {symbol.name: symbol for symbol in symbols}
    every = ("hooks.h", "interposer/process/answers.h", "interposer/process/passage/passage.h")
    headers = {*every, *(family.header for family in families.values())}
    lines = ["/* Generated by gen_hooks.py. */", *(f'#include "{header}"' for header in sorted(headers))]
    for row in hooked:
        if row.handler[0] in "@=":
            lines += wrapper(row, by_name[row.symbol], families[row.handler])
    return "\n".join([*lines, ""])


def lookup(symbols: list[table.Symbol], hooked: list[Row]) -> str:
    """The tables behind cuGetProcAddress."""
    by_name = {symbol.name: symbol for symbol in symbols}
    lines = ["/* Generated by gen_hooks.py. */", '#include "hooks.h"', '#include "interposer/hooks/lookup.h"']
    entries = sorted(
        (by_name[row.symbol].base, by_name[row.symbol].variant != "", by_name[row.symbol].version, row.symbol)
        for row in hooked
    )
    lines += ["const struct gs_hook gs_hooks[] = {"]
    lines += [
        f'  {{"{base}", {version}, {int(per_thread)}, (void *)gs_{name}, "{name}"}},'
        for base, per_thread, version, name in entries
    ]
    lines += ["};", "const unsigned gs_nhooks = sizeof gs_hooks / sizeof gs_hooks[0];"]
    # The choice of a version considers every version of a base, hooked or not.
    known = sorted((s.base, s.variant != "", s.version) for s in symbols if s.version)
    lines += ["const struct gs_known gs_known[] = {"]
    lines += [f'  {{"{base}", {version}, {int(per_thread)}}},' for base, per_thread, version in known]
    lines += ["};", "const unsigned gs_nknown = sizeof gs_known / sizeof gs_known[0];"]
    lines += [f"const int gs_table_version = {table_version()};", ""]
    return "\n".join(lines)


def table_version() -> int:
    first = (API / "driver.tsv").read_text().split("\n", 1)[0]
    return int(re.search(r"cuda\.h (\d+)", first)[1])  # type: ignore[index]


def listing(rows: list[Row]) -> str:
    """The documentation table: what happens to each function, by kind."""
    lines = ["| kind | function | handler, or why it is forwarded |", "|---|---|---|"]
    for row in sorted(rows, key=lambda row: (KINDS.index(row.kind), row.symbol)):
        lines.append(f"| {row.kind} | `{row.symbol}` | {row.handler} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    out = Path(sys.argv[1])
    symbols, rows, families = table.driver(), read_rows(), read_families()
    if wrong := problems(rows, symbols, families):
        sys.exit("\n".join(wrong))
    hooked = [row for row in rows if row.kind != "pass"]
    (out / "hooks.h").write_text(header(symbols, hooked))
    (out / "hooks.c").write_text(code(symbols, hooked, families))
    (out / "hooks_lookup.c").write_text(lookup(symbols, hooked))
    (out / "hooks.md").write_text(listing(rows))
    (out / "hooks_forward.S").write_text(
        forward.file(forward.forwarders(gen_driver.names(), {row.symbol for row in hooked}))
    )


if __name__ == "__main__":
    main()
