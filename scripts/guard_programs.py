#!/usr/bin/env python3
"""Compiles the BPF programs of native/guard into headers: guard_programs.py [--check]

The product contains the instructions of its BPF programs, so that building it needs no BPF compiler, and a node no
compiler at all. With --check nothing is written, and it is an error if a header differs from what its source gives;
if the compiler that made it is missing, that is reported and is not an error. Other compiler versions give other
instructions.
"""

import io
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol

ROOT = Path(__file__).resolve().parent.parent
GUARD = ROOT / "native/guard"
CLANG = "clang-14"  # Debian 12's; scripts/setup installs it
FLAGS = ("-target", "bpf", "-mcpu=v3", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
# By source; its header is named after it.
PROGRAMS = {
    "guard.bpf.c": ("enter", "leave", "exited", "begin", "look", "settle"),
    "devices.bpf.c": ("nodes", "exclusive"),
}
PER_LINE, USES_PER_LINE = 6, 5

R_BPF_64_64 = 1
"""BPF's relocation for a 64-bit immediate."""
# include/uapi/linux/bpf.h
LD_IMM64, PSEUDO_FUNC = 0x18, 4
MAP_PREFIX = "gs_map_"


@dataclass
class Program:
    name: str
    code: bytearray
    maps: list[tuple[int, str]] = field(default_factory=list)
    """(instruction, the map whose descriptor it loads)."""
    functions: list[int] = field(default_factory=list)
    """Offsets of its other functions, in instructions."""


def relocations(elf: ELFFile, section: int) -> list[tuple[int, Symbol]]:
    """(instruction, symbol) of a section."""
    found = []
    for one in elf.iter_sections("SHT_REL"):
        symbols = elf.get_section(one["sh_link"])
        for relocation in one.iter_relocations() if one["sh_info"] == section else ():
            if (kind := relocation["r_info_type"]) != R_BPF_64_64:
                raise SystemExit(f"a relocation of kind {kind}: inline all functions")
            found.append((relocation["r_offset"] // 8, symbols.get_symbol(relocation["r_info_sym"])))
    return found


def programs(elf: ELFFile, names: tuple[str, ...]) -> list[Program]:
    """The programs. Behind each are copies of the functions that it passes to the kernel, as the kernel requires."""
    found = []
    for name in names:
        index = elf.get_section_index(f"program/{name}")
        program = Program(name, bytearray(elf.get_section(index).data()))
        begins: dict[str, int] = {}
        for at, symbol in relocations(elf, index):
            if symbol["st_info"]["type"] != "STT_FUNC":
                program.maps.append((at, _map(symbol)))
                continue
            if symbol.name not in begins:
                begins[symbol.name] = _append(elf, program, symbol)
            code, registers, offset, _ = struct.unpack_from("<BBhi", program.code, at * 8)
            assert code == LD_IMM64
            distance = begins[symbol.name] - at - 1
            struct.pack_into("<BBhi", program.code, at * 8, code, registers & 15 | PSEUDO_FUNC << 4, offset, distance)
        found.append(program)
    return found


def _append(elf: ELFFile, program: Program, symbol: Symbol) -> int:
    section, at_byte, size = symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
    begin, first = len(program.code) // 8, at_byte // 8
    program.code += elf.get_section(section).data()[at_byte : at_byte + size]
    program.functions.append(begin)
    for at, used in relocations(elf, section):
        if first <= at < first + size // 8:
            program.maps.append((begin + at - first, _map(used)))
    return begin


def _map(symbol: Symbol) -> str:
    if not symbol.name.startswith(MAP_PREFIX):
        raise SystemExit(f"{symbol.name!r} is neither a map nor a function")
    return symbol.name.removeprefix(MAP_PREFIX)


def header(source: str, found: list[Program]) -> str:
    once = f"GS_{source.partition('.')[0].upper()}_PROGRAMS_H"
    lines = [
        f"/* Made by scripts/guard_programs.py from {source}, with {CLANG}: not to be edited. */",
        f"#ifndef {once}",
        f"#define {once}",
        "/* clang-format off */",
    ]
    for program in found:
        words = [f"0x{word:016x}," for (word,) in struct.iter_unpack("<Q", program.code)]
        lines.append(f"static const uint64_t code_{program.name}[] = {{")
        lines += ["  " + " ".join(words[index : index + PER_LINE]) for index in range(0, len(words), PER_LINE)]
        lines.append("};")
        lines.append(f"static const struct map_use maps_{program.name}[] = {{")
        uses = [f"{{{at}, MAP_{name.upper()}}}," for at, name in sorted(program.maps)]
        lines += ["  " + " ".join(uses[index : index + USES_PER_LINE]) for index in range(0, len(uses), USES_PER_LINE)]
        lines.append("};")
        starts = ", ".join(map(str, [0, *program.functions]))
        lines.append(f"static const uint32_t functions_{program.name}[] = {{{starts}}};")
        lines.append(
            f"static const struct program_text text_{program.name} = {{code_{program.name}, maps_{program.name}, "
            f"functions_{program.name}, {len(words)}, {len(uses)}, {len(program.functions) + 1}}};"
        )
    return "\n".join([*lines, "/* clang-format on */", "#endif", ""])


def compiled(source: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "programs.o"
        command = [CLANG, *FLAGS, "-I", str(ROOT / "native"), "-c", str(GUARD / source), "-o", str(made)]
        subprocess.run(command, check=True)
        return header(source, programs(ELFFile(io.BytesIO(made.read_bytes())), PROGRAMS[source]))


def main() -> int:
    stale = 0
    for source in PROGRAMS:
        target = GUARD / f"{source.partition('.')[0]}_programs.h"
        try:
            text = compiled(source)
        except FileNotFoundError:
            print(f"guard_programs: {CLANG} is not here: {target.name} is used as it is")
            return 0 if "--check" in sys.argv else 1
        if "--check" not in sys.argv:
            target.write_text(text)
        elif text != target.read_text():
            print(f"{target.relative_to(ROOT)} is not what {source} gives: run scripts/guard_programs.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
