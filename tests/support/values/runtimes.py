"""The table of the CUDA runtime's functions, and the start of a program that calls the runtime through ctypes."""

import sys
from pathlib import Path

API = Path(__file__).resolve().parents[3] / "native" / "api"
sys.path.insert(0, str(API))
import table  # type: ignore[import-not-found]  # noqa: E402

MAJORS = sorted(table.runtime_versions())

START = """
import ctypes, sys
rt = ctypes.CDLL("libcudart.so.{major}")
cu = ctypes.CDLL("libcuda.so.1")
P, Z, I, U = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
at = ctypes.byref
def ok(error):
    assert error == 0, error
"""
