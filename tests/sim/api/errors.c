/* The driver's results for invalid calls. */
#include <sys/wait.h>

#include "client.h"

static void before_init(void) {
  int n;
  size_t bytes;
  CUcontext ctx;
  CUstream stream;
  CUdeviceptr pointer;
  EXPECT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuDeviceTotalMem_v2(&bytes, 0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuCtxCreate_v2(&ctx, 0, 0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuCtxGetCurrent(&ctx), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuStreamCreate(&stream, 0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuStreamSynchronize(NULL), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT(cuDevicePrimaryCtxRetain(&ctx, 0), CUDA_ERROR_NOT_INITIALIZED);
  OK(cuDriverGetVersion(&n)); /* needs no cuInit */
  CHECK(n == 13000);
}

static void without_context(void) {
  CUstream stream;
  CUevent event;
  CUmodule module;
  CUdevice device;
  CUcontext ctx = (CUcontext)1;
  OK(cuCtxGetCurrent(&ctx));
  CHECK(ctx == NULL);
  EXPECT(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuModuleLoadData(&module, spin_ptx), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuCtxPopCurrent_v2(&ctx), CUDA_ERROR_INVALID_CONTEXT);
}

static void devices(void) {
  int n;
  CUdevice device;
  char text[16];
  OK(cuDeviceGetCount(&n));
  CHECK(n == 2);
  EXPECT(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuDeviceGetAttribute(&n, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuDeviceGetAttribute(&n, 100000, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuDeviceGetName(text, 4, 0));
  CHECK(strcmp(text, "gpu") == 0);
  OK(cuDeviceGetPCIBusId(text, sizeof text, 1));
  OK(cuDeviceGetByPCIBusId(&device, text));
  CHECK(device == 1);
  EXPECT(cuDeviceGetByPCIBusId(&device, "0000:7F:00.0"), CUDA_ERROR_INVALID_DEVICE);
  EXPECT(cuDeviceGetByPCIBusId(&device, "what"), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuDeviceGetPCIBusId(text, 3, 0), CUDA_ERROR_INVALID_VALUE);
}

static void contexts(void) {
  CUcontext a, b, now;
  CUdevice device;
  unsigned flags;
  int active;
  EXPECT(cuCtxCreate_v2(NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuCtxCreate_v2(&a, 3, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuCtxCreate_v2(&a, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  OK(cuCtxCreate_v2(&a, 0, 0));
  OK(cuCtxCreate_v4(&b, NULL, 0, 1));
  OK(cuCtxGetDevice(&device));
  CHECK(device == 1);
  OK(cuCtxGetDevice_v2(&device, a));
  CHECK(device == 0);
  OK(cuCtxPopCurrent_v2(&now));
  CHECK(now == b);
  OK(cuCtxGetCurrent(&now));
  CHECK(now == a);
  OK(cuCtxPushCurrent_v2(b));
  OK(cuCtxDestroy_v2(b));
  OK(cuCtxGetCurrent(&now));
  CHECK(now == a);
  EXPECT(cuCtxSetCurrent(b), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuCtxDestroy_v2(b), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxDestroy_v2(a));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(!active);
  OK(cuDevicePrimaryCtxSetFlags(0, 4));
  OK(cuDevicePrimaryCtxRetain(&a, 0));
  OK(cuDevicePrimaryCtxRetain(&b, 0));
  CHECK(a == b);
  EXPECT(cuDevicePrimaryCtxSetFlags(0, 0), CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active && flags == 4);
  EXPECT(cuCtxDestroy_v2(a), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(a));
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxRelease_v2(0));
  EXPECT(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  OK(cuCtxSetCurrent(NULL));
}

static void handles(void) {
  struct client c = client_start();
  CUfunction function;
  CUmodule module;
  CUstream stream;
  CUevent event, quiet;
  CUdeviceptr address;
  size_t bytes, offset;
  float ms;
  uint64_t ns = 1;
  void *params[] = {&ns};
  EXPECT(cuModuleLoadData(&module, "not a program"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT(cuModuleLoadData(&module, ".target sm_50\n"), CUDA_ERROR_INVALID_PTX);
  EXPECT(cuModuleLoad(&module, "/nowhere.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT(cuModuleGetFunction(&function, c.module, "commented_out"), CUDA_ERROR_NOT_FOUND);
  EXPECT(cuModuleGetFunction(&function, c.module, "spin"), CUDA_ERROR_NOT_FOUND);
  EXPECT(cuModuleGetFunction(&function, c.module, NULL), CUDA_ERROR_INVALID_VALUE);
  OK(cuModuleGetGlobal_v2(&address, &bytes, c.module, "counters"));
  CHECK(bytes == 128 && address != 0);
  EXPECT(cuModuleGetGlobal_v2(&address, &bytes, c.module, "nothing"), CUDA_ERROR_NOT_FOUND);
  OK(cuFuncGetParamInfo(c.other, 2, &offset, &bytes));
  CHECK(offset == 16 && bytes == 24);
  EXPECT(cuFuncGetParamInfo(c.other, 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuLaunchKernel(c.spin, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuLaunchKernel(c.spin, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuLaunchKernel(c.spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuLaunchKernel((CUfunction)&ns, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE);
  OK(cuStreamCreate(&stream, 0));
  OK(cuStreamDestroy_v2(stream));
  EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT(cuStreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
  EXPECT(cuStreamCreate(&stream, 2), CUDA_ERROR_INVALID_VALUE);
  OK(cuEventCreate(&event, 0));
  OK(cuEventCreate(&quiet, CU_EVENT_DISABLE_TIMING));
  EXPECT(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  OK(cuEventQuery(event)); /* never recorded, so complete */
  OK(cuEventSynchronize(event));
  EXPECT(cuEventElapsedTime(&ms, event, event), CUDA_ERROR_INVALID_HANDLE);
  OK(cuEventRecord(event, NULL));
  OK(cuEventRecord(quiet, NULL));
  OK(cuCtxSynchronize());
  EXPECT(cuEventElapsedTime(&ms, event, quiet), CUDA_ERROR_INVALID_HANDLE);
  OK(cuEventDestroy_v2(event));
  EXPECT(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  OK(cuModuleUnload(c.module));
  EXPECT(cuModuleUnload(c.module), CUDA_ERROR_INVALID_HANDLE);
  EXPECT(cuLaunchKernel(c.spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE);
  OK(cuCtxDestroy_v2(c.ctx));
}

static void private_tables(void) {
  CUuuid id = {{0x6b, (char)0xd5, (char)0xfb, 0x6c}};
  const void *table = &id;
  EXPECT(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
  CHECK(table == NULL);
}

/* A child cannot use its parent's objects, and the parent is not affected. */
static void forked(void) {
  struct client c = client_start();
  spin(&c, 1000, NULL);
  pid_t child = fork();
  if (child == 0) {
    int n;
    CUcontext ctx;
    EXPECT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuCtxGetCurrent(&ctx), CUDA_ERROR_NOT_INITIALIZED);
    exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  spin(&c, 1000, NULL);
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy_v2(c.ctx));
}

int main(void) {
  const char *text;
  before_init();
  EXPECT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  OK(cuInit(0));
  OK(cuInit(0));
  OK(cuGetErrorName(CUDA_ERROR_NOT_READY, &text));
  CHECK(strcmp(text, "CUDA_ERROR_NOT_READY") == 0);
  EXPECT(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
  without_context();
  devices();
  contexts();
  handles();
  private_tables();
  forked();
  return 0;
}
