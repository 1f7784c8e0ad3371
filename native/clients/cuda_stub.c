/* A library with libcuda's SONAME, to link the clients where no driver is installed. It is neither installed nor run:
 * at run time the real, simulated or interposed libcuda.so.1 is loaded instead. */
#define STUB(name) \
  __attribute__((visibility("default"))) int name(void); \
  int name(void) { return 34; /* CUDA_ERROR_STUB_LIBRARY */ }

STUB(cuInit)
STUB(cuDeviceGet)
STUB(cuDeviceGetName)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuCtxSetCurrent)
STUB(cuCtxSynchronize)
STUB(cuModuleLoadData)
STUB(cuModuleGetFunction)
STUB(cuMemAlloc_v2)
STUB(cuMemFree_v2)
STUB(cuMemcpyDtoH_v2)
STUB(cuMemGetInfo_v2)
STUB(cuStreamCreate)
STUB(cuLaunchKernel)
STUB(cuEventCreate)
STUB(cuEventRecord)
STUB(cuEventSynchronize)
STUB(cuGetErrorName)
