#!/usr/bin/env python3
"""Makes the interposer's generated half from hooks.tsv and native/api: gen_hooks.py OUT_DIR SOURCE_DIR TYPES_HEADER...

hooks.h      types, the typed table of the real driver, prototypes of the handlers
hooks.c      generated handlers, names, the table behind cuGetProcAddress
forward.S    the real driver's table with its lazy entries, and an exported forwarder for every symbol without a handler

It fails on a function that looks like an allocation or a submission and has no row: nobody would pay for it.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "api"))
import table  # type: ignore[import-not-found]  # noqa: E402 - found through the path set above

TYPE = re.compile(r"\b(CU[A-Za-z_]\w*|cuuint\d+_t)\b")
DECLARED = re.compile(r"(?:typedef[^;{}]*?|^})\s*\*?\b(\w+)\s*;|\(\*(\w+)\)\(", re.M)

# By name: what takes device memory, and what hands work to a device. Queries do neither, nor do setters of graph nodes:
# they matter once the graph is launched.
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


@dataclass(frozen=True, slots=True)
class Row:
    symbol: str
    kind: str
    handler: str  # "file.c", "@name", or the reason of a pass
    arguments: tuple[str, ...]


def read_rows(path: Path = HERE / "hooks.tsv") -> list[Row]:
    rows = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            symbol, kind, handler, *arguments = line.split("\t")
            rows.append(Row(symbol, kind, handler, tuple(arguments)))
    return rows


def problems(rows: list[Row], symbols: list[table.Symbol]) -> list[str]:
    """What is wrong with the table; empty when it is complete."""
    found = []
    known = {symbol.name for symbol in symbols}
    named = [row.symbol for row in rows]
    found += [f"hooks.tsv: {name} is not in driver.tsv" for name in named if name not in known]
    found += [f"hooks.tsv: {name} has two rows" for name in sorted(set(named)) if named.count(name) > 1]
    for row in rows:
        if row.kind not in KINDS:
            found.append(f"hooks.tsv: {row.symbol}: no such kind {row.kind!r}")
        if row.kind != "pass" and not re.fullmatch(r"@[a-z_]+|[a-z_]+\.c", row.handler):
            found.append(f"hooks.tsv: {row.symbol}: handler {row.handler!r} is neither file.c nor @name")
    for name in sorted(known - set(named)):
        for rule, what in ((ALLOCATES, "allocate or free device memory"), (SUBMITS, "submit work")):
            if rule.search(name):
                found.append(f"hooks.tsv: {name} looks as if it could {what}: give it a handler or a pass row")
    return found


def opaque_types(symbols: list[table.Symbol], headers: list[str]) -> list[str]:
    """A typedef for each type no header declares. By value only enumerations and handles occur."""
    text = "".join(re.sub(r"/\*.*?\*/", "", Path(header).read_text(), flags=re.S) for header in headers)
    known = {name for match in DECLARED.findall(text) for name in match if name}
    pointed: set[str] = set()
    by_value: set[str] = set()
    for parameter in (p for symbol in symbols for p in symbol.parameters.split(",")):
        for name in TYPE.findall(parameter):
            if name not in known:
                (pointed if "*" in parameter or "[" in parameter else by_value).add(name)
    handles = {
        name
        for name in by_value
        if re.search(
            r"Handle$|Callback$|State$|Memory$|Semaphore$|Resource(Desc)?$|ref$|"
            r"Object$|userObject$",
            name,
        )
    }
    objects = {name for name in handles if re.search(r"(tex|surf)Object$|ConditionalHandle$", name)}
    lines = [f"typedef uint64_t {name};" for name in sorted(objects)]
    lines += [f"typedef void *{name};" for name in sorted(handles - objects)]
    lines += [f"typedef int {name};" for name in sorted(by_value - handles)]
    lines += [f"typedef struct {name}_opaque {name};" for name in sorted(pointed - by_value)]
    return lines


def header(symbols: list[table.Symbol], hooked: list[Row], types: list[str]) -> str:
    by_name = {symbol.name: symbol for symbol in symbols}
    lines = [
        "/* Generated by gen_hooks.py. */",
        "#ifndef GPUSHARE_HOOKS_H",
        "#define GPUSHARE_HOOKS_H",
        '#include "cuda_types.h"',
    ]
    lines += types
    lines += ["enum gs_index {", *(f"  GS_INDEX_{symbol.name}," for symbol in symbols), "  GS_INDEX_COUNT", "};"]
    lines += ["struct gs_real {", *(f"  CUresult (*{s.name})({s.parameters});" for s in symbols), "};"]
    lines += [
        'extern struct gs_real gs_real __attribute__((visibility("hidden")));',
        "#pragma GCC visibility push(default)",
    ]
    lines += [f'CUresult gs_{row.symbol}({by_name[row.symbol].parameters}) __asm__("{row.symbol}");' for row in hooked]
    lines += ["#pragma GCC visibility pop", "#endif", ""]
    return "\n".join(lines)


def parameter_names(parameters: str) -> list[str]:
    if parameters == "void":
        return []
    return [re.search(r"(\w+)\s*(\[\w*\])?$", parameter.strip())[1] for parameter in parameters.split(",")]  # type: ignore[index]


def wrapper(row: Row, symbol: table.Symbol) -> list[str]:
    name = row.handler[1:]
    arguments = "".join(f", {argument}" for argument in row.arguments)
    call = f"gs_real.{row.symbol}({', '.join(parameter_names(symbol.parameters))})"
    return [
        f"CUresult gs_{row.symbol}({symbol.parameters}) {{",
        "  struct gs_around around;",
        f"  CUresult result = gs_before_{name}(&around{arguments});",
        "  if (result != CUDA_SUCCESS)",
        "    return result;",
        f"  result = {call};",
        f"  return gs_after_{name}(&around, result);",
        "}",
    ]


def code(symbols: list[table.Symbol], hooked: list[Row]) -> str:
    by_name = {symbol.name: symbol for symbol in symbols}
    lines = ["/* Generated by gen_hooks.py. */", '#include "around.h"', '#include "lookup.h"']
    lines += ["const char *const gs_names[GS_INDEX_COUNT] = {", *(f'  "{symbol.name}",' for symbol in symbols), "};"]
    for row in hooked:
        if row.handler.startswith("@"):
            lines += wrapper(row, by_name[row.symbol])
    entries = sorted(
        (by_name[row.symbol].base, by_name[row.symbol].variant != "", by_name[row.symbol].version, row.symbol)
        for row in hooked
        if by_name[row.symbol].version
    )
    lines += ["const struct gs_hook gs_hooks[] = {"]
    lines += [
        f'  {{"{base}", {version}, {int(per_thread)}, (void *)gs_{name}}},'
        for base, per_thread, version, name in entries
    ]
    lines += ["};", "const unsigned gs_nhooks = sizeof gs_hooks / sizeof gs_hooks[0];"]
    # Every version of a base counts when one is chosen, hooked or not.
    known = sorted((s.base, s.variant != "", s.version) for s in symbols if s.version)
    lines += ["const struct gs_known gs_known[] = {"]
    lines += [f'  {{"{base}", {version}, {int(per_thread)}}},' for base, per_thread, version in known]
    lines += ["};", "const unsigned gs_nknown = sizeof gs_known / sizeof gs_known[0];"]
    lines += [f"const int gs_table_version = {table_version()};", ""]
    return "\n".join(lines)


def table_version() -> int:
    first = (HERE.parent / "api" / "driver.tsv").read_text().split("\n", 1)[0]
    return int(re.search(r"cuda\.h (\d+)", first)[1])  # type: ignore[index]


# An entry of gs_real starts as its lazy stub, which resolves the symbol, stores what it found and goes on to it;
# forwarders jump through the entry. All argument registers survive; the caller's stack arguments stay where they are.
X86_SLOW = """
gs_forward_slow:
  .cfi_startproc
  push %rdi
  push %rsi
  push %rdx
  push %rcx
  push %r8
  push %r9
  push %rax
  .cfi_adjust_cfa_offset 56
  sub $128, %rsp
  .cfi_adjust_cfa_offset 128
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
  mov %r11d, %edi
  call gs_resolve
  mov %rax, %r11
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  add $128, %rsp
  .cfi_adjust_cfa_offset -128
  pop %rax
  pop %r9
  pop %r8
  pop %rcx
  pop %rdx
  pop %rsi
  pop %rdi
  .cfi_adjust_cfa_offset -56
  jmp *%r11
  .cfi_endproc
"""
ARM_SLOW = """
gs_forward_slow:
  .cfi_startproc
  stp x29, x30, [sp, #-224]!
  .cfi_def_cfa_offset 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  mov w0, w17
  bl gs_resolve
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldr x8, [sp, #80]
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp q4, q5, [sp, #160]
  ldp q6, q7, [sp, #192]
  ldp x29, x30, [sp], #224
  .cfi_restore x29
  .cfi_restore x30
  .cfi_def_cfa_offset 0
  br x16
  .cfi_endproc
"""


def assembly(symbols: list[table.Symbol], hooked: set[str]) -> str:
    def both(x86: str, arm: str) -> list[str]:
        return [
            "#if defined(__x86_64__)",
            x86,
            "#elif defined(__aarch64__)",
            arm,
            "#else",
            "#error no forwarders for this machine",
            "#endif",
        ]

    lines = ["/* Generated by gen_hooks.py. */", ".text", ".hidden gs_resolve"]
    lines += both(X86_SLOW, ARM_SLOW)
    lazy = "gs_lazy_{i}: endbr64; mov ${i}, %r11d; jmp gs_forward_slow"
    lazy_arm = "gs_lazy_{i}: hint #34; mov w17, #{i}; b gs_forward_slow"
    jump = "{n}: endbr64; jmp *gs_real+8*{i}(%rip)"
    jump_arm = "{n}: hint #34; adrp x16, gs_real+8*{i}; ldr x16, [x16, :lo12:gs_real+8*{i}]; br x16"
    numbered = list(enumerate(s.name for s in symbols))
    lines += both(
        "\n".join(lazy.format(i=i) for i, _ in numbered), "\n".join(lazy_arm.format(i=i) for i, _ in numbered)
    )
    forwarded = [(i, n) for i, n in numbered if n not in hooked]
    lines += [f".globl {n}\n.type {n}, %function" for _, n in forwarded]
    lines += both(
        "\n".join(jump.format(i=i, n=n) for i, n in forwarded),
        "\n".join(jump_arm.format(i=i, n=n) for i, n in forwarded),
    )
    lines += [
        '.section .data.rel.local, "aw"',
        ".balign 64",
        ".globl gs_real",
        ".hidden gs_real",
        ".type gs_real, %object",
        f".size gs_real, {8 * len(symbols)}",
        "gs_real:",
    ]
    lines += [f"  .quad gs_lazy_{i}" for i, _ in numbered]
    lines += ['.section .note.GNU-stack, "", %progbits', ""]
    return "\n".join(lines)


def built(row: Row, sources: Path) -> bool:
    """Whether the row's handler exists yet in the sources."""
    if row.handler.startswith("@"):
        return any(f"gs_before_{row.handler[1:]}(" in path.read_text() for path in sources.glob("*.c"))
    return (sources / row.handler).exists()


def main() -> None:
    out, sources, headers = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    symbols, rows = table.driver(), read_rows()
    if wrong := problems(rows, symbols):
        sys.exit("\n".join(wrong))
    hooked = [row for row in rows if row.kind != "pass" and built(row, sources)]
    (out / "hooks.h").write_text(header(symbols, hooked, opaque_types(symbols, headers)))
    (out / "hooks.c").write_text(code(symbols, hooked))
    (out / "forward.S").write_text(assembly(symbols, {row.symbol for row in hooked}))


if __name__ == "__main__":
    main()
