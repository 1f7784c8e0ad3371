#!/usr/bin/env python3
"""Emits the C source of gpushare._native: build_ffi.py OUTPUT.c INCLUDE_DIR... The headers that C compiles are the
cdef."""

import subprocess
import sys
from pathlib import Path

from cffi import FFI

HEADERS = (
    "page/gs_err.h",
    "page/gs_trace.h",
    "page/gs_page.h",
    "page/gs_check.h",
    "page/gs_wire.h",
    "arbiter/gs_arbiter.h",
    "binding/gs_page_ops.h",
    "arbiter/core.h",
    "arbiter/gang.h",
)


def declarations(include: list[str]) -> str:
    """The headers as cffi can parse them: GS_CFFI leaves out includes, inline functions and static assertions."""
    flags = [flag for directory in include for flag in ("-I", directory)]
    source = "".join(f'#include "{header}"\n' for header in HEADERS)
    command = ["gcc", "-E", "-P", "-x", "c", "-DGS_CFFI", *flags, "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def main() -> None:
    output, *include = sys.argv[1:]
    ffi = FFI()
    ffi.cdef(declarations(include))
    preamble = "".join(f'#include "{header}"\n' for header in HEADERS)
    ffi.set_source("gpushare._native", preamble, py_limited_api=True)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main()
