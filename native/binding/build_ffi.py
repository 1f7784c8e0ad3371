#!/usr/bin/env python3
"""Emits the C source of a cffi module: build_ffi.py MODULE OUTPUT.c INCLUDE_DIR HEADER...

The headers (paths relative to INCLUDE_DIR, or absolute) are compiled by C and parsed by cffi. GS_CFFI excludes what
cffi cannot parse: includes, inline functions, static assertions."""

import subprocess
import sys
from pathlib import Path

from cffi import FFI


def main() -> None:
    module, output, include, *headers = sys.argv[1:]
    preamble = "".join(f'#include "{header}"\n' for header in headers)
    command = ["gcc", "-E", "-P", "-x", "c", "-DGS_CFFI", "-I", include, "-"]
    declarations = subprocess.run(command, input=preamble, capture_output=True, text=True, check=True).stdout
    ffi = FFI()
    ffi.cdef(declarations)
    ffi.set_source(module, preamble, py_limited_api=True)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main()
