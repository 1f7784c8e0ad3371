"""A process that uses the simulated device on command: JSON lines with Python code on stdin, one JSON answer each (see
simworker.Worker)."""

import ctypes
import json
import sys
from typing import Any

from cuda.bindings import driver


def ok(answer: tuple[Any, ...]) -> Any:
    """The results of a driver call without the status, which must be CUDA_SUCCESS."""
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error.name)
    return values[0] if len(values) == 1 else tuple(values)


def error(answer: tuple[Any, ...]) -> str:
    return str(answer[0].name)


def context(device: int = 0) -> Any:
    made = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(made))
    return made


def put(address: Any, data: bytes) -> None:
    ok(driver.cuMemcpyHtoD(address, data, len(data)))


def get(address: Any, count: int) -> bytes:
    buffer = bytearray(count)
    ok(driver.cuMemcpyDtoH((ctypes.c_char * count).from_buffer(buffer), address, count))
    return bytes(buffer)


def on_device(kind: Any = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE, device: int = 0) -> Any:
    """Properties for cuMemCreate."""
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = kind
    return properties


def access(device: int = 0) -> Any:
    description = driver.CUmemAccessDesc()
    description.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = device
    description.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return description


def pool(maximum: int = 0, device: int = 0) -> Any:
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.maxSize = maximum
    return ok(driver.cuMemPoolCreate(properties))


def pool_attribute(handle: Any, name: str) -> int:
    attribute = getattr(driver.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
    return int(ok(driver.cuMemPoolGetAttribute(handle, attribute)))


def made(kind: Any, **fields: Any) -> Any:
    """A structure of the bindings with the given fields set."""
    structure = kind()
    for name, value in fields.items():
        setattr(structure, name, value)
    return structure


def host(side: str, address: int) -> dict[str, Any]:
    """Fields of a copy with one side in host memory."""
    return {f"{side}MemoryType": driver.CUmemorytype.CU_MEMORYTYPE_HOST, f"{side}Host": address}


def device(side: str, address: Any) -> dict[str, Any]:
    return {f"{side}MemoryType": driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, f"{side}Device": address}


def in_array(side: str, array: Any) -> dict[str, Any]:
    return {f"{side}MemoryType": driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, f"{side}Array": array}


def elapsed(stream: Any, work: Any) -> float:
    """Milliseconds of stream time that work() takes. The stream is blocked until all work is submitted, so that
    submission time on the host does not count."""
    start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    gate = ok(driver.cuMemAlloc(4))
    put(gate, bytes(4))
    ok(driver.cuStreamWaitValue32(stream, gate, 1, 0))
    ok(driver.cuEventRecord(start, stream))
    work()
    ok(driver.cuEventRecord(end, stream))
    put(gate, bytes([1, 0, 0, 0]))
    ok(driver.cuEventSynchronize(end))
    ok(driver.cuMemFree(gate))
    return float(ok(driver.cuEventElapsedTime(start, end)))


def main() -> None:
    # lib: for variants that the bindings lack. Loaded here, because a zygote imports this module and must not load a
    # driver.
    names = dict(globals()) | {"d": driver, "lib": ctypes.CDLL("libcuda.so.1")}
    for line in sys.stdin:
        kind, text = json.loads(line)
        try:
            if kind == "do":
                exec(text, names)
                answer: Any = None
            else:
                answer = eval(text, names)
            reply = {"value": answer}
        except Exception as failure:
            reply = {"failure": f"{type(failure).__name__}: {failure}"}
        print(json.dumps(reply, default=int), flush=True)


if __name__ == "__main__":
    main()
