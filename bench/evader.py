"""A program past the interposer: takes the device by its driver's path, then beats until it is stopped.

evader.py DRIVER FILE: two words of FILE are CLOCK_MONOTONIC, ns: before its first byte on the device; the last beat.
"""

import ctypes
import mmap
import sys
import time

driver = ctypes.CDLL(sys.argv[1])
with open(sys.argv[2], "r+b") as file:
    words = memoryview(mmap.mmap(file.fileno(), 16)).cast("Q")
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
words[0] = time.monotonic_ns()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
while True:
    words[1] = time.monotonic_ns()
    time.sleep(0.0002)
