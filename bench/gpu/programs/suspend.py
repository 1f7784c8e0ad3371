"""Suspends another process by the driver: suspend.py PID. Prints the seconds of each step as one JSON object.

Lock, checkpoint, restore, unlock: cuCheckpointProcess* of the driver API (r570 and newer).
"""

import ctypes
import json
import sys
import time


class LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


def name(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(text))
    return text.value.decode() if text.value else str(code)


def main() -> int:
    pid = int(sys.argv[1])
    cuda = ctypes.CDLL("libcuda.so.1")
    if code := cuda.cuInit(0):
        print(json.dumps({"error": f"cuInit: {name(cuda, code)}"}))
        return 1
    lock = LockArguments(timeout_ms=30000)
    nothing = ctypes.c_void_p()
    seconds: dict[str, float] = {}
    for step, arguments in (
        ("Lock", ctypes.byref(lock)),
        ("Checkpoint", nothing),
        ("Restore", nothing),
        ("Unlock", nothing),
    ):
        if step == "Restore":
            print(json.dumps({"event": "suspended"}), flush=True)
            sys.stdin.readline()
        at = time.perf_counter()
        if code := getattr(cuda, f"cuCheckpointProcess{step}")(pid, arguments):
            print(json.dumps({"error": f"cuCheckpointProcess{step}: {name(cuda, code)}"}))
            return 1
        seconds[step.lower()] = time.perf_counter() - at
    print(json.dumps({"event": "resumed", "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
