/* Runtime calls of an ordinary CUDA program, compiled with the toolkit's own headers. */
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

#define CHECK(x)                                                                                   \
  do {                                                                                             \
    if (!(x)) {                                                                                    \
      printf("line %d: not so: %s (%s)\n", __LINE__, #x, cudaGetErrorName(cudaPeekAtLastError())); \
      return 1;                                                                                    \
    }                                                                                              \
  } while (0)
#define OK(x) CHECK((x) == cudaSuccess)

__device__ int table[4];
__constant__ float factor;
__managed__ int shared_word;

__global__ void combine(int *p, float f) { p[0] = table[0] + (int)(f * factor) + shared_word; }

int main() {
  int values[4] = {1, 2, 3, 4}, back[4] = {0}, count = 0, current = 0;
  OK(cudaGetDeviceCount(&count));
  CHECK(count == 2);
  OK(cudaMemcpyToSymbol(table, values, sizeof values));
  OK(cudaMemcpyFromSymbol(back, table, sizeof back));
  CHECK(memcmp(values, back, sizeof values) == 0);
  float f = 2;
  OK(cudaMemcpyToSymbol(factor, &f, sizeof f));
  size_t bytes = 0;
  OK(cudaGetSymbolSize(&bytes, table));
  CHECK(bytes == sizeof values);
  shared_word = 7;
  int *p = nullptr, *r = nullptr;
  OK(cudaMalloc(&p, 400));
  combine<<<1, 32>>>(p, 1.f);
  OK(cudaGetLastError());
  OK(cudaDeviceSynchronize());
  CHECK(shared_word == 7);

  cudaPointerAttributes about;
  OK(cudaPointerGetAttributes(&about, p));
  CHECK(about.type == cudaMemoryTypeDevice && about.device == 0 && about.devicePointer == p);
  OK(cudaPointerGetAttributes(&about, values));
  CHECK(about.type == cudaMemoryTypeUnregistered);
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  CHECK(properties.major == 8 && properties.maxThreadsPerBlock == 1024 && properties.warpSize == 32);
  CHECK(properties.totalGlobalMem == (size_t)16 << 30 && properties.memoryPoolsSupported == 1);
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, combine));
  CHECK(attributes.maxThreadsPerBlock == 1024);
  int blocks = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, combine, 256, 0));
  CHECK(blocks > 0);

  size_t pitch = 0;
  char *rows = nullptr, source[300], copied[300];
  for (int i = 0; i < 300; i++) source[i] = (char)i;
  OK(cudaMallocPitch(&rows, &pitch, 100, 3));
  CHECK(pitch == 512);
  OK(cudaMemcpy2D(rows, pitch, source, 100, 100, 3, cudaMemcpyHostToDevice));
  OK(cudaMemcpy2D(copied, 100, rows, pitch, 100, 3, cudaMemcpyDefault));
  CHECK(memcmp(source, copied, sizeof source) == 0);

  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t run;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  combine<<<1, 32, 0, stream>>>(p, 1.f);
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&run, graph, 0));
  OK(cudaGraphLaunch(run, stream));
  OK(cudaStreamSynchronize(stream));

  OK(cudaSetDevice(1));
  OK(cudaGetDevice(&current));
  CHECK(current == 1);
  OK(cudaMalloc(&r, 400));
  OK(cudaPointerGetAttributes(&about, r));
  CHECK(about.device == 1);
  OK(cudaMemcpyPeer(r, 1, p, 0, 400));
  OK(cudaDeviceReset());
  OK(cudaMalloc(&r, 400));
  CHECK(cudaMalloc(&r, (size_t)1 << 60) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  puts("ok");
  return 0;
}
