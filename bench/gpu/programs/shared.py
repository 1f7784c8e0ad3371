"""Memory that two processes have: shared.py BYTES. Prints the pids of who has made it and who has imported it, and ends
with its stdin."""

import ctypes
import json
import os
import sys

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * HANDLE_BYTES),)


def start() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    return cuda


def must(result: int) -> None:
    if result:
        print(json.dumps({"event": "error", "name": f"CUDA error {result}"}), flush=True)
        sys.exit(1)


def importer(given: int, done: int) -> None:
    handle = Handle.from_buffer_copy(os.read(given, HANDLE_BYTES))
    address = ctypes.c_uint64()
    cuda = start()
    must(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1))  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    os.write(done, b"1")
    os.read(given, 1)


def exporter(size: int, give: int, hear: int, child: int) -> None:
    handle, address = Handle(), ctypes.c_uint64()
    cuda = start()
    must(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    must(cuda.cuIpcGetMemHandle(ctypes.byref(handle), address))
    os.write(give, bytes(handle))
    os.read(hear, 1)
    print(json.dumps({"event": "ready", "exporter": os.getpid(), "importer": child}), flush=True)
    sys.stdin.read()


given, give = os.pipe()
hear, done = os.pipe()
child = os.fork()  # before CUDA, which does not survive it
if child == 0:
    os.close(give)
    os.close(hear)
    importer(given, done)
    os._exit(0)
os.close(given)
os.close(done)
exporter(int(sys.argv[1]), give, hear, child)
os.close(give)
os.waitpid(child, 0)
