"""Calls that make the driver take memory of the device, for workers: each takes some that its process has not reserved
before."""

from pathlib import Path

from run.interposed import Interposed, ptx

MIB = 1 << 20
OUT = "CUDA_ERROR_OUT_OF_MEMORY"

TAKES = {
    "small": "d.cuMemAlloc(1 << 20)",
    "movable": "d.cuMemAlloc(4 << 20)",
    "rows": "d.cuMemAllocPitch(4096, 1024, 4)",
    "wide rows": "d.cuMemAllocPitch(128 << 10, 64, 4)",
    "managed": "d.cuMemAllocManaged(4 << 20, 1)",
    "pool": "d.cuMemAllocAsync(64 << 20, s)",
    "named pool": "d.cuMemAllocFromPoolAsync(64 << 20, own_pool, s)",
    "handle": "d.cuMemCreate(4 << 20, on_device(), 0)",
    "array": "d.cuArrayCreate(flat)",
    "context": "d.cuCtxCreate(None, 0, 0)",
    "module": "d.cuModuleLoadData(large)",
    "library": "d.cuLibraryGetModule(library)",
    "stacks": "d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE, 8192)",
    "buffers": "d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20)",
    "graph of kernels": "d.cuGraphInstantiate(of_kernel, 0)",
    "node of a graph": "d.cuGraphExecKernelNodeSetParams(light_exec, light_node, heavy)",
    "graph's memory": "d.cuGraphUpload(of_memory, s)",
}
LAUNCHES = {
    "launch": "d.cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, s, 0, 0)",
    "library's launch": "d.cuLaunchKernel(d.CUfunction(int(kernel)), 1, 1, 1, 1, 1, 1, 0, s, 0, 0)",
    "graph launch": "d.cuGraphLaunch(of_memory, s)",
}


def ready(worker: Interposed, directory: Path) -> None:
    """Makes what the calls above need. Nothing of it can be moved."""
    deep = ptx(directory / "deep.ptx", ("deep", 4096), ("deeper", 6144), ("flat", 0))
    large = ptx(directory / "large.ptx", ("large", 0), variables=".visible .global .align 8 .b8 much[6291456];")
    lib = ptx(directory / "library.ptx", ("of_library", 0), variables=".visible .global .align 8 .b8 some[6291456];")
    worker.do(f"""
        s = ok(d.cuStreamCreate(1))
        own_pool = pool()
        flat = made(d.CUDA_ARRAY_DESCRIPTOR, Width=1024, Height=1024, NumChannels=1)
        flat.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
        deep_module = ok(d.cuModuleLoadData(open({str(deep)!r}, "rb").read()))
        deep, deeper, light = [ok(d.cuModuleGetFunction(deep_module, n)) for n in (b"deep", b"deeper", b"flat")]
        large = open({str(large)!r}, "rb").read()
        library = ok(d.cuLibraryLoadData(open({str(lib)!r}, "rb").read(), [], [], 0, [], [], 0))
        kernel = ok(d.cuLibraryGetKernel(library, b"of_library"))
        def node(function):
            of = made(d.CUDA_KERNEL_NODE_PARAMS, func=function, gridDimX=1, gridDimY=1, gridDimZ=1)
            of.blockDimX = of.blockDimY = of.blockDimZ = 1
            return of
        heavy = node(deeper)
        of_kernel = ok(d.cuGraphCreate(0))
        ok(d.cuGraphAddKernelNode(of_kernel, None, 0, heavy))
        light_graph = ok(d.cuGraphCreate(0))
        light_node = ok(d.cuGraphAddKernelNode(light_graph, None, 0, node(light)))
        light_exec = ok(d.cuGraphInstantiate(light_graph, 0))
        memory_graph = ok(d.cuGraphCreate(0))
        where = d.CUmemPoolProps()
        where.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        where.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        some = made(d.CUDA_MEM_ALLOC_NODE_PARAMS, bytesize=4 << 20, poolProps=where)
        begin = ok(d.cuGraphAddMemAllocNode(memory_graph, [], 0, some))
        ok(d.cuGraphAddMemFreeNode(memory_graph, [begin], 1, some.dptr))
        of_memory = ok(d.cuGraphInstantiate(memory_graph, 0))
    """)
