"""A program past the interposer: loads the driver by its path, takes a context, then writes beats until it is stopped.

evader.py DRIVER FILE: FILE has two words, CLOCK_MONOTONIC in ns: before the first byte on the device; the last beat.
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
