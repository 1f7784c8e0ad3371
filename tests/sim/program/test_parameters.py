"""Parameters of kernels out of PTX, cubins, and fatbins whose parts are compressed, as real drivers know them."""

import base64
import random
from typing import Any

import pytest
from run.simworker import Worker, start

INVALID, NOT_FOUND = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_FOUND"
TEXT = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry many(.param .u32 a, .param .u8 b, .param .u64 c, .param .align 8 .b8 d[24], .param .u16 e) { ret; }
.visible .entry none() { ret; }
"""
MANY = [[0, 4], [4, 1], [8, 8], [16, 24], [40, 2]]  # offset and size

# TEXT, as ptxas and fatbinary of CUDA 13.0 made it: a cubin for sm_80, by -compress-mode=size (Zstandard) and speed
# (LZ4), and the text by -compress-mode=size.
ZSTD = base64.b64decode(
    "UO1VugEAEAB4AwAAAAAAAAIAAQFAAAAAOAMAAAAAAAAyAwAAAAAAAAgAAQBQAAAAAAAAAAAAAAARgAAAAAAAAAAAAAAAAAAA6BAAAAAAAAAotS/9"
    "YOgPRRkAlh5xPRCVc5uAlFamAkArAFQgjBpWEBGdUfT6Px5ssdIkgRKBIpAvwuGWDCBwDVpl6o757AXnHsF7Yspfb1vklildAGIAYQCtbWbjbYuq"
    "cl7jLcvZcltJZbmV19S0XfWVd3dlUVna8pmbrh2X9hvKsqw0l16+rGXa2bV8nGyduWctV/4K7213Z275jz/15ud3vWn6Eo160nz8QP99uIHx9yHi"
    "MRM7dXmqpu2OcFWW7ZurNFuNRTeX3Tre5bgea/33tpbt2BuwFwyF5B9g6AZle433TdJas0KVjuYNX6XT0aBGmfcbXjIFjyTBifg6YZVGGigiewR0"
    "RhNTBvj5YWVpHeW2XGc7G6eX+P20wHdIuUlKS/8pUD9mCP/j5OeA3qMO9EMk5IfAsfCkydcLZ/5XIf9fYI0hEpw+FU7omi/JRuFeuc6au2doyyV+"
    "dbIoMFgVrJZF2aYT7YlumUq7cbzLVaLsiFVpQRHg5uHQ50nQJPbodP7Tm0xwQlMIx3gcMaQOCgBDcie+wp2DSRmTwW5cQDJVcsgOBm4wB2dont4H"
    "8IB5msRICCHeva9ABe+Ij82MP4fwY9Bnm7cH8uPRZ93nRn4kGjHM9wGA5KjRfEcSRpIUVCod8EqEREkHYimcCBqKhAwxlFBBBRKYssqrlcacGev+"
    "Gec/7n/dPqvks/whGxMNtF1ledfJ5k/RgMSHMOLYCV4mgdgxGbSPE+ClsbiJluMkLsJh003rgDD064O8IIxSJ2qH5N4GvgzQmx3lyOTZ1CfKGZxQ"
    "HOckwJH6QfVcUjyIpo4J5gXD+gdo/VH2Ef9OkLoCWW48PuKtGYaaAvJg5UJXeJ3T/WKzjMk4BSYKs2EQSTeDrQ+4Af0j8yZUlclIWvlqeTXMTZPu"
    "RgoZhQlHleFbKbBxHEfvV0X/KnsoTrecamicRJsCHPHZSALZQ8m84PI/T8TlziGyCHNk3OkSF8K/v0AT4J7nPId7no5X314BHEVRtWVxvUgMCBwi"
    "wpCt+Bc24Kc++HY/rsnEX/r3WvMz54Rzcw3KzrJAliogm6ECBu9OmwzRsXauMJBmf/xh+/nv5Et0CgAAAAAAAA=="
)
LZ4 = base64.b64decode(
    "UO1VugEAEABIBQAAAAAAAAIAAQFAAAAACAUAAAAAAAAFBQAAAAAAAAgAAQBQAAAAAAAAAAAAAAARIAAAAAAAAAAAAAAAAAAA6BAAAAAAAACif0VM"
    "RgIBAUEIAAEAUwIAvgABDAAAAQAjQBAJABIMBwDQBFAABkAAOAADAEAAESoAtS5zaHN0cnRhYgAuCAAneW0IAPYHX3NobmR4AC5ub3RlLm52LnRr"
    "aW5mbxAAI2N1EAAidi4ZAJV0ZXh0Lm5vbmUUAAYOAGZzaGFyZWQQAJNjb25zdGFudDATAD9yZWwXAAEBUwBGbWFueVMABQ4AA1MABRAABlMAAjEA"
    "DVMAAhcAo2RlYnVnX2ZyYW13AAwRABphEgAAlgCBYWxsZ3JhcGgOAIJwcm90b3R5cOcAALkAb2FjdGlvblMBag3tAA9qAQYPUwEWDVMAD2oBBgkw"
    "AQ9TAToBHQIBuAEDzgINAgB7KQAAAAMABRYAMQAAORgAEwYOAAYCABFSGAAUDw8ABQIAEZIYABMNDgAGAgARpRgABE0DBgIAEeUYABQODwAFAgAR"
    "+BgAEwQOAAYCACAoARgAFAoPAAUCABFEGAATCw4ABgIAZ1MBAAASEKgAA90DEVgYAAeQAAMYAFP/////JBUAE/8BAEADAAR8CwDRDwyBgIAoAAj/"
    "gYAoCAsAAiQAEzQwAA0CAANUACQEBAUAAkEAUwT8//8/KwAPcAApE3BEAAUCAA9wABAAxwT3BogAAADQBwAATlZJRElBIENvcnAAAkMAkAcAAAA2"
    "AAAAYBMA8ANwdHhhcwBDdWRhIGNvbXBpbGGlA/AIIHRvb2xzLCByZWxlYXNlIDEzLjAsIFYHAPEALjg4AEJ1aWxkIGN1ZGFfEwAQcgYAEi9AAPQL"
    "ZXIuMzY0MjQ3MTRfMAAtYXJjaCBzbV84MCCgAACMBSzoA6AAkVAAggAAAAQvCOYBAVMBEhEMABMAGAAXChgABCICKgQSDAAFMAAhNwRQAPEAATUA"
    "AAMb/wADXwAABBwEogIIHAAxBAoI/gKgYAEqAAMZKgAEF0IBlQAABAAoAADwCRAAAdwCJfBhEAAQAsYAJfAhEAAQAbIAJfAFEAABAQAt8BF8AAQU"
    "AgAIABP+CAAT/QgAU/z///9zJACTAAAAESUABTa0DgAAwAEAGAEXRBAABPgADwIA////DDICegEpAwDLBkXkDwBNIwewgAMA6g8AR3kAAPD9BYX/"
    "gwMAwA8AGCAALwAAEACxDwAB7QTLAQ8CACUALAwfAzsAABNAEgATU5QHBAIACw8AAbQFD0AAAROTKQATXQgABAIACw8AIwAT/AUMAgAT8NEHEyAx"
    "AAQQBgToDBMYCAAf+FQAAAABABMQewkT4BAABAIAA08ABQIAEykwCANjAAUCABPwQAAToBAABAIAAxcABQIAFjlAAAlbABOQiwoTIBQAAw8ADUAA"
    "H0kLCQQTsDEAE0gwAARkAQxAABNdQAAEsAEEAgAT+EAAExwQABMDIwQMQAAfsEAABBMUMwsTfC8AAEAAHxBAAAAA0AofAcsJABOQQAAEAAEMwAAE"
    "yAEA+AofC0AAABOwQAAH4goJOAAEQABXBQEAAAmwAgQCABPAQAAIgAAXBDgABFgAE3u5ARNCEAAEAgAT4EAAF2DWARMPRAAIAgAfzkAABBNAoQAX"
    "ikAAD0ABARNSQAADbwAGAgAE/QgDQAAAgAFTCgAABIAXAAQCABOlIwANQAAEKQoHQAAfC0AAABMGnAIFKBALAgATqA4ABAgAA9cAAVcAFwUoAQwC"
    "ABMggAIECAAMOAAPcAAYUAAAAAAAAAAA"
)
ZSTD_TEXT = base64.b64decode(
    "UO1VugEAEADYAAAAAAAAAAEAAQFQAAAAiAAAAAAAAACEAAAAQAAAAAAABwBQAAAAAAAAAAAAAAARgAAAAAAAAAAAAAAAAAAAwQAAAAAAAABIAAAA"
    "AAAAAAAAAAAAAAAAKLUv/SDB3QMAwocZGWB3DtzOEPdZOzRNWoIgxzblbBGBCOAERwdA0JKS25Xa89qFPlIwz1igQ2cPL6Mo8fOHOIcf+MZh7See"
    "XG2ASZ6OzSp735ITabzWPeSdRdpQ2hOCeB0Bm4m+djS5riM2uaQinX1tBgBDDe0OU20qLheSmHEg0aYZAAAAAA=="
)
HEADERS = 16 + 64  # of the fatbin and of its only part


def unpacked(block: bytes) -> bytes:
    """An LZ4 block."""
    out, at = bytearray(), 0

    def length(count: int) -> int:
        nonlocal at
        more = 255 if count == 15 else 0
        while more == 255:
            more = block[at]
            at += 1
            count += more
        return count

    while True:
        token = block[at]
        at += 1
        literals = length(token >> 4)
        out += block[at : at + literals]
        at += literals
        if at >= len(block):
            return bytes(out)
        back = int.from_bytes(block[at : at + 2], "little")
        at += 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-back])


CUBIN = unpacked(LZ4[HEADERS : HEADERS + int.from_bytes(LZ4[32:36], "little")])
IMAGES = {"text": TEXT + bytes(1), "cubin": CUBIN, "zstd": ZSTD, "lz4": LZ4, "compressed text": ZSTD_TEXT}


@pytest.fixture
def worker(sim: Any) -> Worker:
    return start(sim)


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_parameters_are_known(worker: Worker, image: bytes) -> None:
    worker.do(f"""
        library = ok(d.cuLibraryLoadData({image!r}, [], [], 0, [], [], 0)); module = ok(d.cuModuleLoadData({image!r}))
        kernels = {{name: ok(d.cuLibraryGetKernel(library, name.encode())) for name in ("many", "none")}}
        functions = {{name: ok(d.cuModuleGetFunction(module, name.encode())) for name in ("many", "none")}}
        def counted(call, of):
            count = ctypes.c_size_t()
            assert getattr(lib, call)(ctypes.c_void_p(int(of)), ctypes.byref(count)) == 0
            return count.value
    """)
    for call, of in (("cuKernelGetParam", "kernels"), ("cuFuncGetParam", "functions")):
        asked = f"[list(map(int, ok(d.{call}Info({of}['many'], i)))) for i in range({len(MANY)})]"
        assert worker.get(asked) == MANY
        assert worker.error(f"d.{call}Info({of}['many'], {len(MANY)})") == INVALID
        assert worker.error(f"d.{call}Info({of}['none'], 0)") == INVALID
        assert worker.get(f"[counted('{call}Count', {of}[name]) for name in ('many', 'none')]") == [len(MANY), 0]
    assert worker.error("d.cuModuleGetFunction(module, b'other')") == NOT_FOUND


def test_a_kernel_may_have_as_many_as_a_compiler_takes(worker: Worker) -> None:
    """Fused kernels have hundreds. Texts with more than 32,764 bytes of them are no kernel's: nothing is said of it."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(1024))
    text = f""".version 8.1
.target sm_80
.address_size 64
.visible .entry most({declared}) {{ ret; }}
.visible .entry large(.param .b8 a[32700], .param .u64 b[7]) {{ ret; }}
.visible .entry more({declared}, .param .u64 last) {{ ret; }}
.visible .entry larger(.param .b8 a[32700], .param .u64 b[8]) {{ ret; }}
""".encode()
    worker.do(
        f"module = ok(d.cuModuleLoadData({text + bytes(1)!r}))\n"
        "of = lambda name: ok(d.cuModuleGetFunction(module, name))"
    )
    asked = "[list(map(int, ok(d.cuFuncGetParamInfo(of({!r}), i)))) for i in range({})]"
    assert worker.get(asked.format(b"most", 1024)) == [[8 * i, 8] for i in range(1024)]
    assert worker.get(asked.format(b"large", 2)) == [[0, 32700], [32704, 56]]
    for name in (b"more", b"larger"):
        assert worker.error(f"d.cuFuncGetParamInfo(of({name!r}), 0)") == "CUDA_ERROR_NOT_SUPPORTED"


@pytest.mark.parametrize("image", [ZSTD, LZ4], ids=["zstd", "lz4"])
def test_a_damaged_part_harms_nobody(worker: Worker, image: bytes) -> None:
    """It is loaded as before: any name may be in it, and nothing is known about its kernels."""
    draw = random.Random(1)
    for _ in range(200):
        damaged = bytearray(image)
        for _ in range(draw.randrange(1, 8)):
            damaged[draw.randrange(HEADERS, len(damaged))] = draw.randrange(256)
        worker.do(f"module = ok(d.cuModuleLoadData({bytes(damaged)!r})); d.cuModuleGetFunction(module, b'many')")
    cut = bytearray(image)
    cut[HEADERS:] = bytes(len(cut) - HEADERS)
    worker.do(f"function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData({bytes(cut)!r})), b'whatever'))")
    assert worker.error("d.cuFuncGetParamInfo(function, 0)") == "CUDA_ERROR_NOT_SUPPORTED"


def test_a_graph_keeps_arguments_of_a_binary_s_kernel(worker: Worker) -> None:
    """They may change, or go, after the call."""
    worker.do(f"""
        many = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData({ZSTD!r})), b"many"))
        values = [ctypes.create_string_buffer(bytes([i]) * size, size) for i, (_, size) in enumerate({MANY})]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        node = made(d.CUDA_KERNEL_NODE_PARAMS, func=many, gridDimX=1, gridDimY=1, gridDimZ=1, blockDimX=1, blockDimY=1,
            blockDimZ=1, kernelParams=ctypes.addressof(pointers))
        graph = ok(d.cuGraphCreate(0)); ok(d.cuGraphAddKernelNode(graph, None, 0, node))
        [ctypes.memset(value, 255, len(value)) for value in values]
        ok(d.cuGraphLaunch(ok(d.cuGraphInstantiate(graph, 0)), 0)); ok(d.cuCtxSynchronize())
        raw = ctypes.create_string_buffer(256)
        [added] = ok(d.cuGraphGetNodes(graph, 1))[0]
        assert lib.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(int(added)), raw) == 0
        kept = ctypes.cast(int.from_bytes(raw[40:48], "little"), ctypes.POINTER(ctypes.c_void_p))
    """)
    want = [[i] * size for i, (_, size) in enumerate(MANY)]
    assert worker.get(f"[list(ctypes.string_at(kept[i], size)) for i, (_, size) in enumerate({MANY})]") == want
