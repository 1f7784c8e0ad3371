/* Linking, textures and surfaces, and library kernels wherever a function is accepted. */
#include "client.h"

static const char with_references[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".global .texref picture;\n.global .surfref target;\n.tex .u32 older;\n"
    ".global .u32 plain;\n"
    ".visible .entry third(.param .u64 p0)\n{\n  .local .b8 frame[4096];\n  ret;\n}\n";

/* ---- linking ----------------------------------------------------------------------------------------------------- */

static void linked(void) {
  enum { LOG = 256 };
  char info[LOG] = "old", error[LOG] = "old";
  CUjit_option options[] = {CU_JIT_WALL_TIME, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {NULL, info, (void *)LOG, error, (void *)LOG};
  CUlinkState link;
  CUmodule module;
  CUfunction function;
  CUdeviceptr counters;
  void *cubin;
  size_t bytes, offset, size;
  CUjit_option unknown = CU_JIT_NUM_OPTIONS;
  EXPECT(cuLinkCreate_v2(1, &unknown, values, &link), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuLinkCreate_v2(0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  OK(cuLinkCreate_v2(5, options, values, &link));
  EXPECT(cuLinkComplete(link, &cubin, &bytes), CUDA_ERROR_INVALID_VALUE); /* no input */
  EXPECT(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, "nonsense", 9, "bad.ptx", 0, NULL, NULL), CUDA_ERROR_INVALID_PTX);
  CHECK(strstr(error, "bad.ptx") && (size_t)values[4] == strlen(error) + 1);
  EXPECT(cuLinkAddData_v2(link, CU_JIT_INPUT_CUBIN, "nonsense", 9, NULL, 0, NULL, NULL), CUDA_ERROR_INVALID_IMAGE);
  EXPECT(cuLinkAddData_v2(link, CU_JIT_INPUT_LIBRARY, "nonsense", 9, NULL, 0, NULL, NULL), CUDA_ERROR_INVALID_IMAGE);
  EXPECT(cuLinkAddData_v2(link, CU_JIT_NUM_INPUT_TYPES, "", 1, NULL, 0, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuLinkAddFile_v2(link, CU_JIT_INPUT_PTX, "/nonexistent", 0, NULL, NULL), CUDA_ERROR_FILE_NOT_FOUND);
  OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)spin_ptx, sizeof spin_ptx, "a", 0, NULL, NULL));
  OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)with_references, sizeof with_references, "b", 0, NULL,
                      NULL));
  OK(cuLinkComplete(link, &cubin, &bytes));
  CHECK(info[0] == '\0' && values[2] == NULL && bytes > sizeof spin_ptx);
  OK(cuModuleLoadData(&module, cubin));

  CUlinkState again; /* the output is an input of another link */
  OK(cuLinkCreate_v2(0, NULL, NULL, &again));
  OK(cuLinkAddData_v2(again, CU_JIT_INPUT_CUBIN, cubin, bytes, NULL, 0, NULL, NULL));
  OK(cuLinkDestroy(link));
  EXPECT(cuLinkDestroy(link), CUDA_ERROR_INVALID_HANDLE);
  CUmodule second;
  OK(cuLinkComplete(again, &cubin, NULL));
  OK(cuModuleLoadData(&second, cubin));
  OK(cuLinkDestroy(again));
  OK(cuModuleGetFunction(&function, second, "other"));

  /* the program is complete without the link: parameters, variables, local memory, references */
  int local;
  CUtexref texture;
  OK(cuModuleGetFunction(&function, module, "other"));
  OK(cuFuncGetParamInfo(function, 2, &offset, &size));
  CHECK(offset == 16 && size == 24);
  OK(cuModuleGetGlobal_v2(&counters, &size, module, "counters"));
  CHECK(size == 128);
  OK(cuModuleGetFunction(&function, module, "third"));
  OK(cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
  CHECK(local == 4096);
  OK(cuModuleGetTexRef(&texture, module, "picture"));
  OK(cuModuleUnload(module));
  EXPECT(cuTexRefSetFlags(texture, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuModuleUnload(second));
}

static void load_logs(void) {
  char error[64] = "old";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {error, (void *)sizeof error};
  CUmodule module;
  EXPECT(cuModuleLoadDataEx(&module, ".entry x() {}", 2, options, values), CUDA_ERROR_INVALID_PTX);
  CHECK(error[0] && (size_t)values[1] == strlen(error) + 1);
  values[1] = (void *)sizeof error;
  OK(cuModuleLoadDataEx(&module, spin_ptx, 2, options, values));
  CHECK(error[0] == '\0' && values[1] == NULL);
  OK(cuModuleUnload(module));
}

/* ---- textures and surfaces --------------------------------------------------------------------------------------- */

static void objects(void) {
  CUarray plain, writable;
  CUtexObject texture;
  CUsurfObject surface;
  CUdeviceptr memory;
  CUDA_RESOURCE_DESC read = {0}, resource = {.resType = CU_RESOURCE_TYPE_ARRAY};
  CUDA_RESOURCE_VIEW_DESC view = {.width = 64, .height = 32};
  CUDA_TEXTURE_DESC how = {.flags = CU_TRSF_NORMALIZED_COORDINATES, .filterMode = CU_TR_FILTER_MODE_LINEAR}, got;
  CUDA_ARRAY_DESCRIPTOR flat = {64, 32, CU_AD_FORMAT_FLOAT, 1};
  CUDA_ARRAY3D_DESCRIPTOR deep = {64, 32, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
  OK(cuArrayCreate_v2(&plain, &flat));
  OK(cuArray3DCreate_v2(&writable, &deep));
  OK(cuMemAlloc_v2(&memory, 1 << 20));

  EXPECT(cuTexObjectCreate(&texture, &resource, &how, NULL), CUDA_ERROR_INVALID_VALUE); /* no array */
  resource.res.array.hArray = plain;
  EXPECT(cuTexObjectCreate(&texture, &resource, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexObjectCreate(&texture, &resource, &how, &view));
  OK(cuTexObjectGetResourceDesc(&read, texture));
  CHECK(read.res.array.hArray == plain);
  OK(cuTexObjectGetTextureDesc(&got, texture));
  CHECK(got.flags == how.flags);
  OK(cuTexObjectGetResourceViewDesc(&view, texture));
  EXPECT(cuSurfObjectDestroy(texture), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexObjectDestroy(texture));
  EXPECT(cuTexObjectDestroy(texture), CUDA_ERROR_INVALID_VALUE);
  how.filterMode = 2;
  EXPECT(cuTexObjectCreate(&texture, &resource, &how, NULL), CUDA_ERROR_INVALID_VALUE);
  how.filterMode = 0;

  resource.res.array.hArray = writable;
  OK(cuSurfObjectCreate(&surface, &resource));
  OK(cuSurfObjectGetResourceDesc(&read, surface));
  OK(cuSurfObjectDestroy(surface));

  resource = (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_LINEAR};
  resource.res.linear.devPtr = memory;
  resource.res.linear.format = CU_AD_FORMAT_FLOAT;
  resource.res.linear.numChannels = 4;
  resource.res.linear.sizeInBytes = 1 << 20;
  OK(cuTexObjectCreate(&texture, &resource, &how, NULL));
  EXPECT(cuTexObjectCreate(&texture, &resource, &how, &view), CUDA_ERROR_INVALID_VALUE); /* views are of arrays */
  resource.res.linear.sizeInBytes++;
  EXPECT(cuTexObjectCreate(&texture, &resource, &how, NULL), CUDA_ERROR_INVALID_VALUE); /* beyond the allocation */
  resource = (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_PITCH2D};
  resource.res.pitch2D.devPtr = memory;
  resource.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT8;
  resource.res.pitch2D.numChannels = 1;
  resource.res.pitch2D.width = 1000;
  resource.res.pitch2D.height = 1000;
  resource.res.pitch2D.pitchInBytes = 1024;
  OK(cuTexObjectCreate(&texture, &resource, &how, NULL));
  resource.res.pitch2D.pitchInBytes = 1000;
  EXPECT(cuTexObjectCreate(&texture, &resource, &how, NULL), CUDA_ERROR_INVALID_VALUE);
  OK(cuArrayDestroy(plain));
  OK(cuArrayDestroy(writable));
  OK(cuMemFree_v2(memory));
}

static void references(void) {
  CUmodule module;
  CUtexref texture, other;
  CUsurfref surface;
  CUarray array, got;
  CUdeviceptr memory, address;
  CUaddress_mode mode;
  CUarray_format format;
  size_t offset;
  int channels;
  CUDA_ARRAY3D_DESCRIPTOR shape = {16, 16, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SURFACE_LDST};
  OK(cuModuleLoadData(&module, with_references));
  OK(cuModuleGetTexRef(&texture, module, "picture"));
  OK(cuModuleGetTexRef(&other, module, "older"));
  OK(cuModuleGetSurfRef(&surface, module, "target"));
  EXPECT(cuModuleGetTexRef(&other, module, "plain"), CUDA_ERROR_NOT_FOUND);
  EXPECT(cuModuleGetTexRef(&other, module, "target"), CUDA_ERROR_NOT_FOUND);
  EXPECT(cuModuleGetGlobal_v2(&address, &offset, module, "picture"), CUDA_ERROR_NOT_FOUND);
  OK(cuArray3DCreate_v2(&array, &shape));
  OK(cuMemAlloc_v2(&memory, 4096));

  EXPECT(cuTexRefGetArray(&got, texture), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuTexRefSetArray(texture, array, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexRefSetArray(texture, array, CU_TRSA_OVERRIDE_FORMAT));
  OK(cuTexRefGetArray(&got, texture));
  CHECK(got == array);
  OK(cuTexRefGetFormat(&format, &channels, texture));
  CHECK(format == CU_AD_FORMAT_UNSIGNED_INT8 && channels == 4);
  OK(cuTexRefSetAddress_v2(&offset, texture, memory + 4, 1024));
  CHECK(offset == 4);
  OK(cuTexRefGetAddress_v2(&address, texture));
  CHECK(address == memory);
  EXPECT(cuTexRefGetArray(&got, texture), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexRefSetAddressMode(texture, 1, CU_TR_ADDRESS_MODE_BORDER));
  OK(cuTexRefGetAddressMode(&mode, texture, 1));
  CHECK(mode == CU_TR_ADDRESS_MODE_BORDER);
  EXPECT(cuTexRefSetAddressMode(texture, 3, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexRefSetFilterMode(texture, CU_TR_FILTER_MODE_LINEAR));
  OK(cuTexRefSetFlags(texture, CU_TRSF_NORMALIZED_COORDINATES));
  OK(cuSurfRefSetArray(surface, array, 0));
  OK(cuSurfRefGetArray(&got, surface));
  CHECK(got == array);
  EXPECT(cuTexRefDestroy(texture), CUDA_ERROR_INVALID_VALUE); /* its module's */
  OK(cuTexRefCreate(&other));
  OK(cuTexRefDestroy(other));
  EXPECT(cuTexRefDestroy(other), CUDA_ERROR_INVALID_VALUE);
  OK(cuModuleUnload(module));
  OK(cuArrayDestroy(array));
  OK(cuMemFree_v2(memory));
}

/* ---- kernels of libraries ---------------------------------------------------------------------------------------- */

/* A library's kernel is launched, measured and put into graphs as it is, and in any context of its device. */
static void kernels(const struct client *c) {
  uint64_t ns = 1000000;
  void *params[] = {&ns};
  CUlibrary library;
  CUkernel kernel;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node, second;
  CUcontext other;
  int value;
  OK(cuLibraryLoadData(&library, spin_ptx, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "spin_ns"));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUfunction as_function = (CUfunction)kernel;
  OK(cuLaunchKernel(as_function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  OK(cuLaunchCooperativeKernel(as_function, 1, 1, 1, 1, 1, 1, 0, stream, params));
  CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, NULL, 0};
  OK(cuLaunchKernelEx(&config, as_function, params, NULL));
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, as_function));
  OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, as_function, 128, 0));

  CUDA_KERNEL_NODE_PARAMS launch = {.kern = kernel,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 1,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .kernelParams = params},
                          read;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &launch));
  OK(cuGraphKernelNodeGetParams_v2(node, &read));
  CHECK(read.kern == kernel && read.func == NULL && read.ctx == c->ctx);
  launch.func = as_function;
  launch.kern = NULL;
  OK(cuGraphAddKernelNode_v2(&second, graph, &node, 1, &launch));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphLaunch(exec, stream));
  ns = 2000000;
  launch.func = NULL;
  launch.kern = kernel;
  OK(cuGraphExecKernelNodeSetParams_v2(exec, second, &launch));
  OK(cuCtxCreate_v2(&other, 0, 0));
  EXPECT(cuGraphExecKernelNodeSetParams_v2(exec, node, &launch), CUDA_ERROR_INVALID_VALUE); /* another context */
  launch.ctx = c->ctx;
  OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &launch));
  OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuCtxDestroy_v2(other));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy_v2(stream));
  OK(cuLibraryUnload(library));
}

int main(void) {
  struct client c = client_start();
  linked();
  load_logs();
  objects();
  references();
  kernels(&c);
  OK(cuCtxDestroy_v2(c.ctx));
  return 0;
}
