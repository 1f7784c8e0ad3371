/* Invalid calls: without an out-pointer, of size 0, of sizes that overflow, with handles that are NULL or destroyed.
 * Each is made before cuInit, without a context, with one, after its end, and from an exit handler. Prints the results:
 * "where: call = result". The output must be the same with and without the interposer.
 *
 * Handles are NULL or were valid once, because a driver may crash on any other handle; the simulated driver refuses
 * those of pools and graphs that are of no object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_api.h"

#define HUGE SIZE_MAX
#define HALF ((size_t)1 << 63)
#define OVER ((size_t)1 << 46) /* no overflow, but more than any device has */

static const char *where;
static CUdeviceptr p, freed;
static CUdeviceptr_v1 low;
static unsigned pitch1;
static size_t pitch, bytes;
static CUcontext gone, made;
static CUarray array, array_gone;
static CUmipmappedArray mipmap, mipmap_gone;
static CUmemGenericAllocationHandle handle, handle_gone;
static CUmemoryPool pool, other_pool;
static CUmodule module, module_gone;
static CUlibrary library;
static CUkernel kernel;
static CUfunction function;
static CUgreenCtx green;
static CUdevice device;
static unsigned long long id;
static uint64_t nothing[8]; /* a handle of the right size, of no object */
static CUgraph graph;
static CUgraphExec exec;
static CUgraphNode node;
static CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_CONTEXT;
static CUipcMemHandle shared;
static const CUDA_RESOURCE_DESC no_resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
static const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 99}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUarrayMapInfo no_tiles = {.memOperationType = CU_MEM_OPERATION_TYPE_MAP}; /* of no array, with no memory */
static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAllocationProp on_host = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
static const CUmemAllocationProp nowhere = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 99}};
static const CUmemAllocationProp no_type = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemPoolProps pool_props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemPoolProps pool_nowhere = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 99}};
static const CUmulticastObjectProp no_team, far_team = {.numDevices = 99, .size = 2 << 20};
static const CUDA_ARRAY_DESCRIPTOR flat0 = {0, 0, 0x20, 1}, flat = {16, 16, 0x20, 1}, flat_huge = {HUGE, HUGE, 0x20, 4},
                                   flat_over = {1u << 31, 1u << 31, 0x20, 4}, flat_bad = {16, 16, 0x7777, 1},
                                   flat_odd = {16, 16, 0x20, 9};
static const CUDA_ARRAY_DESCRIPTOR_v1 old0 = {0, 0, 0x20, 1}, old = {16, 16, 0x20, 1}, old_huge = {~0u, ~0u, 0x20, 4};
static const CUDA_ARRAY3D_DESCRIPTOR cube0 = {0, 0, 0, 0x20, 1, 0}, cube = {8, 8, 8, 0x20, 1, 0},
                                     cube_huge = {HUGE, HUGE, HUGE, 0x20, 4, 0}, cube_flags = {8, 8, 8, 0x20, 1, ~0u},
                                     cube_bad = {8, 8, 8, 0x7777, 3, 0};
static const CUDA_ARRAY3D_DESCRIPTOR_v1 cube_old0 = {0, 0, 0, 0x20, 1, 0}, cube_old_huge = {~0u, ~0u, ~0u, 0x20, 4, 0};
static const char text[] = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry k()\n{\n ret;\n}\n";
static const char none[] = ".target sm_52\n",
                  binary[] = "\x7f"
                             "ELF garbage that is none................................................";

/* clang-format off */
#define CALLS(X) \
  X(cuMemAlloc(NULL, 512)) X(cuMemAlloc(&low, 0)) X(cuMemAlloc(NULL, 0)) X(cuMemAlloc(NULL, ~0u)) \
  X(cuMemAlloc_v2(NULL, 512)) X(cuMemAlloc_v2(&p, 0)) X(cuMemAlloc_v2(&p, HUGE)) X(cuMemAlloc_v2(&p, HALF)) X(cuMemAlloc_v2(&p, OVER)) \
  X(cuMemAlloc_v2(NULL, HUGE)) X(cuMemAlloc_v2(NULL, OVER)) X(cuMemAlloc_v2(&p, HUGE - 100)) X(cuMemAlloc_v2(NULL, 0)) \
  X(cuMemAllocPitch(NULL, &pitch1, 4, 4, 4)) X(cuMemAllocPitch(&low, NULL, 4, 4, 4)) X(cuMemAllocPitch(&low, &pitch1, 0, 4, 4)) \
  X(cuMemAllocPitch(&low, &pitch1, 4, 4, 3)) X(cuMemAllocPitch(&low, &pitch1, ~0u, ~0u, 4)) \
  X(cuMemAllocPitch_v2(NULL, &pitch, 4, 4, 4)) X(cuMemAllocPitch_v2(&p, NULL, 4, 4, 4)) X(cuMemAllocPitch_v2(&p, &pitch, 0, 4, 4)) \
  X(cuMemAllocPitch_v2(&p, &pitch, 4, 0, 4)) X(cuMemAllocPitch_v2(&p, &pitch, 4, 4, 5)) X(cuMemAllocPitch_v2(&p, &pitch, HUGE, 2, 4)) \
  X(cuMemAllocPitch_v2(&p, &pitch, 2, HUGE, 4)) X(cuMemAllocPitch_v2(&p, &pitch, HALF, HALF, 4)) X(cuMemAllocPitch_v2(&p, &pitch, HUGE, 2, 5)) \
  X(cuMemAllocPitch_v2(NULL, NULL, HUGE, HUGE, 4)) \
  X(cuMemAllocManaged(NULL, 512, 1)) X(cuMemAllocManaged(&p, 0, 1)) X(cuMemAllocManaged(&p, HUGE, 1)) X(cuMemAllocManaged(&p, 512, 7)) \
  X(cuMemAllocManaged(&p, OVER, 7)) X(cuMemAllocManaged(NULL, OVER, 1)) X(cuMemAllocManaged(&p, 512, 0)) X(cuMemAllocManaged(&p, 512, 3)) \
  X(cuMemAdvise(12345, 512, 3, 99)) X(cuMemAdvise(0, 0, 77, -7)) X(cuMemAdvise_v2(12345, 512, 3, nowhere.location)) \
  X(cuMemAdvise_v2(0, HUGE, 3, on_host.location)) \
  X(cuMemFree(0)) X(cuMemFree(12345)) X(cuMemFree_v2(0)) X(cuMemFree_v2(12345)) X(cuMemFree_v2(HUGE)) X(cuMemFree_v2(freed)) \
  X(cuMemAllocAsync(NULL, 512, NULL)) X(cuMemAllocAsync(&p, 0, NULL)) X(cuMemAllocAsync(&p, HUGE, NULL)) X(cuMemAllocAsync(&p, OVER, NULL)) \
  X(cuMemAllocAsync_ptsz(NULL, 512, NULL)) X(cuMemAllocAsync_ptsz(&p, HUGE, NULL)) X(cuMemAllocAsync(NULL, HUGE, NULL)) \
  X(cuMemAllocFromPoolAsync(NULL, 512, pool, NULL)) X(cuMemAllocFromPoolAsync(&p, 0, pool, NULL)) X(cuMemAllocFromPoolAsync(&p, HUGE, pool, NULL)) \
  X(cuMemAllocFromPoolAsync(&p, 512, NULL, NULL)) X(cuMemAllocFromPoolAsync_ptsz(&p, HALF, pool, NULL)) X(cuMemAllocFromPoolAsync_ptsz(NULL, 1, pool, NULL)) \
  X(cuMemFreeAsync(0, NULL)) X(cuMemFreeAsync(12345, NULL)) X(cuMemFreeAsync(freed, NULL)) X(cuMemFreeAsync_ptsz(12345, NULL)) \
  X(cuMemPoolCreate(NULL, &pool_props)) X(cuMemPoolCreate(&pool, NULL)) X(cuMemPoolCreate(&pool, &pool_nowhere)) X(cuMemPoolCreate(NULL, NULL)) \
  X(cuMemGetDefaultMemPool(NULL, NULL, 1)) X(cuMemGetDefaultMemPool(&other_pool, NULL, 1)) X(cuMemGetMemPool(NULL, NULL, 1)) \
  X(cuMemGetMemPool(&other_pool, NULL, 99)) X(cuMemPoolDestroy(NULL)) X(cuMemPoolDestroy((CUmemoryPool)nothing)) X(cuMemPoolTrimTo((CUmemoryPool)nothing, HUGE)) X(cuMemAllocFromPoolAsync(&p, 512, (CUmemoryPool)nothing, NULL)) X(cuDeviceSetMemPool(0, NULL)) X(cuDeviceSetMemPool(99, NULL)) X(cuMemSetMemPool(NULL, 1, NULL)) X(cuMemPoolTrimTo(NULL, 0)) X(cuMemPoolTrimTo(NULL, HUGE)) \
  X(cuMemPoolImportFromShareableHandle(NULL, NULL, 1, 0)) X(cuMemPoolImportFromShareableHandle(&pool, (void *)-1, 1, 0)) \
  X(cuMemCreate(NULL, 2 << 20, &on_device, 0)) X(cuMemCreate(&handle, 0, &on_device, 0)) X(cuMemCreate(&handle, 1, &on_device, 0)) \
  X(cuMemCreate(&handle, HUGE, &on_device, 0)) X(cuMemCreate(&handle, HALF, &on_device, 0)) X(cuMemCreate(&handle, OVER, &on_device, 0)) \
  X(cuMemCreate(&handle, 2 << 20, NULL, 0)) X(cuMemCreate(&handle, 2 << 20, &nowhere, 0)) X(cuMemCreate(&handle, 2 << 20, &no_type, 0)) \
  X(cuMemCreate(&handle, 2 << 20, &on_device, 1)) X(cuMemCreate(&handle, OVER, &on_device, 1)) X(cuMemCreate(&handle, OVER, &no_type, 0)) \
  X(cuMemCreate(&handle, HUGE, &on_host, 0)) X(cuMemCreate(NULL, OVER, &on_device, 0)) X(cuMemCreate(&handle, OVER + 1, &on_device, 0)) \
  X(cuMemRelease(0)) X(cuMemRelease(handle_gone)) X(cuMemRelease(12345)) \
  X(cuMemMap(0, 0, 0, 0, 0)) X(cuMemMap(2 << 20, 2 << 20, 0, handle_gone, 0)) X(cuMemMap(HUGE, HUGE, HUGE, handle_gone, 0)) \
  X(cuMemMap(0, 2 << 20, 0, 0, 7)) X(cuMemUnmap(0, 0)) X(cuMemUnmap(4096, HUGE)) X(cuMemUnmap(HUGE, HUGE)) X(cuMemUnmap(2 << 20, 2 << 20)) \
  X(cuMemMapArrayAsync(NULL, 0, NULL)) X(cuMemMapArrayAsync(NULL, 1, NULL)) X(cuMemMapArrayAsync(&no_tiles, 0, NULL)) \
  X(cuMemMapArrayAsync(&no_tiles, 1, NULL)) X(cuMemMapArrayAsync_ptsz(NULL, 1, NULL)) X(cuMemMapArrayAsync_ptsz(&no_tiles, 1, NULL)) \
  X(cuMemPoolSetAttribute(NULL, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes)) X(cuMemPoolSetAttribute(NULL, 99, NULL)) \
  X(cuMemRetainAllocationHandle(NULL, NULL)) X(cuMemRetainAllocationHandle(&handle, NULL)) X(cuMemRetainAllocationHandle(&handle, &handle)) \
  X(cuMemImportFromShareableHandle(NULL, NULL, 1)) X(cuMemImportFromShareableHandle(&handle, (void *)-1, 1)) \
  X(cuMemImportFromShareableHandle(&handle, (void *)0, 1)) X(cuMemImportFromShareableHandle(&handle, NULL, 999)) \
  X(cuMemExportToShareableHandle(NULL, 0, 1, 0)) X(cuMemExportToShareableHandle(&handle, handle_gone, 1, 0)) \
  X(cuMemExportToShareableHandle(&handle, 12345, 999, 7)) X(cuImportExternalMemory(NULL, NULL)) X(cuImportExternalMemory((CUexternalMemory *)&handle, NULL)) \
  X(cuExternalMemoryGetMappedBuffer(NULL, NULL, NULL)) X(cuExternalMemoryGetMappedBuffer(&p, NULL, NULL)) \
  X(cuExternalMemoryGetMappedMipmappedArray(NULL, NULL, NULL)) X(cuDestroyExternalMemory(NULL)) X(cuDestroyExternalMemory((CUexternalMemory)&handle)) \
  X(cuArrayCreate(NULL, &old)) X(cuArrayCreate(&array, NULL)) X(cuArrayCreate(&array, &old0)) X(cuArrayCreate(&array, &old_huge)) X(cuArrayCreate(NULL, NULL)) \
  X(cuArrayCreate_v2(NULL, &flat)) X(cuArrayCreate_v2(&array, NULL)) X(cuArrayCreate_v2(&array, &flat0)) X(cuArrayCreate_v2(&array, &flat_huge)) \
  X(cuArrayCreate_v2(&array, &flat_over)) X(cuArrayCreate_v2(&array, &flat_bad)) X(cuArrayCreate_v2(&array, &flat_odd)) X(cuArrayCreate_v2(NULL, &flat_huge)) \
  X(cuArray3DCreate(NULL, &cube_old0)) X(cuArray3DCreate(&array, NULL)) X(cuArray3DCreate(&array, &cube_old0)) X(cuArray3DCreate(&array, &cube_old_huge)) \
  X(cuArray3DCreate_v2(NULL, &cube)) X(cuArray3DCreate_v2(&array, NULL)) X(cuArray3DCreate_v2(&array, &cube0)) X(cuArray3DCreate_v2(&array, &cube_huge)) \
  X(cuArray3DCreate_v2(&array, &cube_flags)) X(cuArray3DCreate_v2(&array, &cube_bad)) X(cuArray3DCreate_v2(NULL, &cube_huge)) \
  X(cuMipmappedArrayCreate(NULL, &cube, 2)) X(cuMipmappedArrayCreate(&mipmap, NULL, 2)) X(cuMipmappedArrayCreate(&mipmap, &cube, 0)) \
  X(cuMipmappedArrayCreate(&mipmap, &cube, ~0u)) X(cuMipmappedArrayCreate(&mipmap, &cube_huge, 2)) X(cuMipmappedArrayCreate(&mipmap, &cube0, 2)) \
  X(cuMipmappedArrayCreate(&mipmap, &cube_huge, 0)) X(cuArrayDestroy(NULL)) X(cuMipmappedArrayDestroy(NULL)) \
  X(cuMulticastCreate(NULL, &far_team)) X(cuMulticastCreate(&handle, NULL)) X(cuMulticastCreate(&handle, &no_team)) X(cuMulticastCreate(&handle, &far_team)) \
  X(cuMulticastBindMem(0, 0, 0, 0, 0, 0)) X(cuMulticastBindMem(handle_gone, HUGE, handle_gone, HUGE, HUGE, 0)) X(cuMulticastBindMem(0, 0, 0, 0, 2 << 20, 1)) \
  X(cuMulticastBindMem_v2(0, 0, 0, 0, 0, 0, 0)) X(cuMulticastBindMem_v2(handle_gone, 0, HUGE, handle_gone, HUGE, HUGE, 0)) X(cuMulticastBindMem_v2(0, 99, 0, 0, 0, 2 << 20, 1)) \
  X(cuMulticastBindAddr_v2(0, 0, 0, 0, 0, 0)) X(cuMulticastBindAddr_v2(handle_gone, 99, HUGE, HUGE, HUGE, 0)) \
  X(cuMulticastBindAddr(0, 0, 0, 0, 0)) X(cuMulticastBindAddr(handle_gone, HUGE, HUGE, HUGE, 0)) X(cuMulticastUnbind(0, 0, 0, 0)) \
  X(cuMulticastUnbind(handle_gone, 99, HUGE, HUGE)) X(cuMulticastUnbind(handle_gone, 0, HUGE, HUGE)) \
  X(cuGraphLaunch(NULL, NULL)) X(cuGraphLaunch((CUgraphExec)nothing, NULL)) X(cuGraphUpload(NULL, NULL)) X(cuGraphExecDestroy(NULL)) \
  X(cuGraphExecDestroy((CUgraphExec)nothing)) X(cuGraphInstantiateWithFlags(NULL, NULL, 0)) X(cuGraphInstantiateWithFlags(&exec, NULL, 0)) \
  X(cuGraphInstantiateWithFlags(&exec, (CUgraph)nothing, 0)) X(cuGraphInstantiateWithParams(&exec, NULL, NULL)) X(cuGraphAddMemAllocNode(&node, graph, NULL, 0, NULL)) \
  X(cuDeviceGraphMemTrim(77)) X(cuDeviceGraphMemTrim(-1)) X(cuDeviceGetAttribute(NULL, 83, 0)) \
  X(cuCtxCreate(NULL, 0, 0)) X(cuCtxCreate(&made, ~0u, 0)) X(cuCtxCreate(&made, 0, 99)) X(cuCtxCreate_v2(NULL, 0, 0)) X(cuCtxCreate_v2(&made, 0, -1)) \
  X(cuCtxCreate_v2(&made, ~0u, 0)) X(cuCtxCreate_v2(NULL, ~0u, 99)) X(cuCtxCreate_v3(NULL, NULL, 0, 0, 0)) X(cuCtxCreate_v3(&made, NULL, 3, 0, 0)) \
  X(cuCtxCreate_v3(&made, NULL, 0, 0, 99)) X(cuCtxCreate_v4(NULL, NULL, 0, 0)) X(cuCtxCreate_v4(&made, NULL, 0, 99)) X(cuCtxCreate_v4(&made, NULL, ~0u, 0)) \
  X(cuCtxDestroy(NULL)) X(cuCtxDestroy_v2(NULL)) X(cuCtxDetach(gone)) X(cuCtxDetach(NULL)) X(cuCtxAttach(NULL, 0)) X(cuCtxAttach(&made, 1)) \
  X(cuCtxGetApiVersion(gone, &pitch1)) X(cuCtxGetApiVersion(gone, NULL)) X(cuCtxGetApiVersion(NULL, &pitch1)) X(cuCtxGetId(gone, &id)) \
  X(cuCtxSetCurrent(gone)) X(cuCtxPushCurrent_v2(gone)) X(cuCtxSynchronize_v2(gone)) X(cuCtxGetDevice_v2(&device, gone)) \
  X(cuCtxRecordEvent(gone, NULL)) X(cuCtxWaitEvent(gone, NULL)) X(cuCtxDestroy(gone)) X(cuCtxDestroy_v2(gone)) \
  X(cuDevicePrimaryCtxRetain(NULL, 0)) X(cuDevicePrimaryCtxRetain(&made, 99)) X(cuDevicePrimaryCtxRetain(&made, -1)) X(cuDevicePrimaryCtxRetain(NULL, 99)) \
  X(cuDevicePrimaryCtxRelease(99)) X(cuDevicePrimaryCtxRelease(0)) X(cuDevicePrimaryCtxRelease_v2(-1)) X(cuDevicePrimaryCtxRelease_v2(0)) \
  X(cuDevicePrimaryCtxReset(99)) X(cuDevicePrimaryCtxReset(0)) X(cuDevicePrimaryCtxReset_v2(-1)) X(cuDevicePrimaryCtxReset_v2(0)) \
  X(cuGreenCtxCreate(NULL, NULL, 0, 1)) X(cuGreenCtxCreate(&green, NULL, 0, 1)) X(cuGreenCtxCreate(&green, NULL, 99, 0)) X(cuGreenCtxDestroy(NULL)) \
  X(cuCtxSetLimit(0, HUGE)) X(cuCtxSetLimit(1, HUGE)) X(cuCtxSetLimit(2, HUGE)) X(cuCtxSetLimit(99, 1)) X(cuCtxSetLimit(-1, 1)) X(cuCtxSetLimit(0, 0)) \
  X(cuCtxSetLimit(2, 0)) X(cuCtxSetLimit(3, 99)) X(cuCtxSetLimit(3, HUGE)) X(cuCtxSetLimit(4, HUGE)) X(cuCtxSetLimit(4, 1)) X(cuCtxSetLimit(3, 1)) X(cuCtxSetLimit(5, 64)) \
  X(cuModuleLoad(NULL, "/none")) X(cuModuleLoad(&module, NULL)) X(cuModuleLoad(&module, "/none")) X(cuModuleLoad(&module, "/")) X(cuModuleLoad(&module, "/dev/null")) \
  X(cuModuleLoadData(NULL, text)) X(cuModuleLoadData(&module, NULL)) X(cuModuleLoadData(&module, none)) X(cuModuleLoadData(&module, binary)) \
  X(cuModuleLoadDataEx(NULL, text, 0, NULL, NULL)) X(cuModuleLoadDataEx(&module, NULL, 0, NULL, NULL)) X(cuModuleLoadDataEx(&module, text, 3, NULL, NULL)) \
  X(cuModuleLoadFatBinary(NULL, text)) X(cuModuleLoadFatBinary(&module, NULL)) X(cuModuleLoadFatBinary(&module, none)) X(cuModuleUnload(NULL)) \
  X(cuModuleGetFunction(&function, NULL, "k")) X(cuModuleGetFunction(NULL, NULL, NULL)) X(cuModuleEnumerateFunctions(&function, 1, NULL)) \
  X(cuModuleEnumerateFunctions(NULL, 1, NULL)) \
  X(cuModuleUnload(module_gone)) X(cuLibraryLoadData(NULL, text, NULL, NULL, 0, NULL, NULL, 0)) X(cuLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0)) \
  X(cuLibraryLoadData(&library, none, NULL, NULL, 0, NULL, NULL, 0)) X(cuLibraryLoadFromFile(NULL, "/none", NULL, NULL, 0, NULL, NULL, 0)) \
  X(cuLibraryLoadFromFile(&library, NULL, NULL, NULL, 0, NULL, NULL, 0)) X(cuLibraryLoadFromFile(&library, "/none", NULL, NULL, 0, NULL, NULL, 0)) \
  X(cuLibraryUnload(NULL)) X(cuLibraryGetKernel(&kernel, NULL, "k")) X(cuLibraryGetKernel(NULL, NULL, NULL)) X(cuLibraryEnumerateKernels(NULL, 1, NULL)) \
  X(cuLibraryGetModule(&module, NULL)) X(cuLibraryGetModule(NULL, NULL)) X(cuLibraryGetGlobal(&p, &bytes, NULL, "g")) X(cuLibraryGetGlobal(NULL, NULL, NULL, NULL)) \
  X(cuKernelGetFunction(&function, NULL)) X(cuKernelGetFunction(NULL, NULL)) \
  X(cuMemGetAddressRange(&low, &pitch1, 12345)) X(cuMemGetAddressRange_v2(NULL, NULL, freed)) X(cuMemGetAddressRange_v2(&p, &bytes, HUGE)) \
  X(cuPointerGetAttribute(NULL, 1, freed)) X(cuPointerGetAttribute(&bytes, 1, freed)) X(cuPointerGetAttribute(&bytes, 99, 0)) X(cuPointerGetAttribute(&bytes, 5, 0)) \
  X(cuPointerGetAttributes(0, NULL, NULL, 0)) X(cuPointerGetAttributes(1, NULL, NULL, freed)) X(cuPointerGetAttributes(1, &attribute, NULL, freed)) \
  X(cuPointerSetAttribute(NULL, 6, freed)) X(cuPointerSetAttribute(&bytes, 6, HUGE)) X(cuPointerSetAttribute(&bytes, 99, 0)) \
  X(cuMemSetAccess(0, 0, NULL, 0)) X(cuMemSetAccess(freed, HUGE, &access, 1)) X(cuMemGetAccess(NULL, NULL, 0)) X(cuMemGetAccess(&id, &on_host.location, HUGE)) \
  X(cuMemAddressFree(0, 0)) X(cuMemAddressFree(HUGE, HUGE)) X(cuMemAddressFree(freed, 4096)) X(cuStreamAttachMemAsync(NULL, HUGE, HUGE, 99)) \
  X(cuStreamAttachMemAsync_ptsz(NULL, 0, 0, 0)) X(cuMemRangeGetAttribute(NULL, 0, 99, 0, 0)) X(cuMemRangeGetAttributes(NULL, NULL, NULL, 0, HUGE, HUGE)) \
  X(cuMemHostRegister(NULL, 0, 0)) X(cuMemHostRegister_v2(NULL, HUGE, ~0u)) X(cuMemHostRegister_v2((void *)HUGE, HUGE, 0)) \
  X(cuLogicalEndpointBindAddr(0, 99, 0, NULL, 0, 0)) X(cuIpcGetMemHandle(NULL, 0)) X(cuIpcGetMemHandle(NULL, freed)) X(cuIpcGetMemHandle(&shared, freed)) \
  X(cuMemGetHandleForAddressRange(NULL, 0, 0, 1, 0)) X(cuMemGetHandleForAddressRange(&id, HUGE, HUGE, 99, 1)) X(cuMemGetLocationInfo(0, 0, 0, 0, NULL)) \
  X(cuTexObjectCreate(NULL, NULL, NULL, NULL)) X(cuTexObjectCreate(&id, &no_resource, NULL, NULL)) X(cuTexRefSetAddress(NULL, NULL, 0, 0)) \
  X(cuTexRefSetAddress_v2(&bytes, NULL, HUGE, HUGE)) X(cuTexRefSetAddress2D(NULL, NULL, 0, 0)) X(cuTexRefSetAddress2D_v2(NULL, &flat, HUGE, HUGE)) \
  X(cuTexRefSetAddress2D_v3(NULL, NULL, 0, 0)) X(cuGraphAddMemcpyNode(NULL, NULL, NULL, 0, NULL, NULL)) X(cuGraphAddMemsetNode(&node, NULL, NULL, 0, NULL, NULL))
/* clang-format on */

static void misuse(const char *now) {
  where = now;
#define CALL(call) printf("%s: %s = %d\n", where, #call, (int)call);
  CALLS(CALL)
}

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  printf("cannot prepare: %s = %d\n", what, (int)result);
  exit(3);
}

/* Creates the handles of objects that are then destroyed. */
static void prepare(void) {
  must(cuMemAlloc_v2(&freed, 4096), "cuMemAlloc");
  must(cuMemFree_v2(freed), "cuMemFree");
  must(cuMemCreate(&handle_gone, 2 << 20, &on_device, 0), "cuMemCreate");
  must(cuMemRelease(handle_gone), "cuMemRelease");
  must(cuModuleLoadData(&module_gone, text), "cuModuleLoadData");
  must(cuModuleUnload(module_gone), "cuModuleUnload");
  must(cuArrayCreate_v2(&array_gone, &flat), "cuArrayCreate");
  must(cuArrayDestroy(array_gone), "cuArrayDestroy");
  must(cuMipmappedArrayCreate(&mipmap_gone, &cube, 2), "cuMipmappedArrayCreate");
  must(cuMipmappedArrayDestroy(mipmap_gone), "cuMipmappedArrayDestroy");
  must(cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
}

static void at_exit(void) {
  misuse("in an exit handler, its context destroyed");
  must(cuDevicePrimaryCtxRetain(&made, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(made), "cuCtxSetCurrent");
  misuse("in an exit handler, with the primary context");
  fflush(stdout);
}

int main(void) {
  CUcontext context;
  misuse("before cuInit");
  must(cuInit(0), "cuInit");
  misuse("without a context");
  must(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate"); /* while the other exists, so that the handles differ */
  must(cuCtxCreate_v2(&gone, 0, 0), "cuCtxCreate");
  prepare();
  must(cuCtxDestroy_v2(gone), "cuCtxDestroy");
  misuse("with a context");
  must(cuMemAlloc_v2(&p, 1 << 20), "cuMemAlloc");
  must(cuCtxDestroy_v2(context), "cuCtxDestroy");
  printf("a pointer of a destroyed context: cuMemFree_v2 = %d\n", (int)cuMemFree_v2(p));
  misuse("after the context's end");
  must(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
  must(cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
  must(cuCtxDestroy_v2(context), "cuCtxDestroy");
  misuse("with a destroyed context on the stack");
  atexit(at_exit);
  return 0;
}
