/* A program as nvcc generates it: host stubs and registrations written by hand, device code as PTX. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

typedef struct {
  unsigned x, y, z;
} dim3_t;
typedef struct CUstream_st *stream_t;
typedef struct CUkern_st *kernel_t;
typedef void *handle_t;

void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3_t, dim3_t, size_t, stream_t);
int __cudaPopCallConfiguration(dim3_t *, dim3_t *, size_t *, void *);
int __cudaGetKernel(kernel_t *, const void *);
int __cudaLaunchKernel(kernel_t, dim3_t, dim3_t, void **, size_t, stream_t);
int cudaLaunchKernel(const void *, dim3_t, dim3_t, void **, size_t, stream_t);
int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDevice(int *), cudaDeviceSynchronize(void),
    cudaDeviceReset(void);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int),
    cudaMemset(void *, int, size_t);
int cudaMallocAsync(void **, size_t, stream_t), cudaFreeAsync(void *, stream_t), cudaMallocHost(void **, size_t);
int cudaMallocManaged(void **, size_t, unsigned), cudaFreeHost(void *);
int cudaMemcpyAsync(void *, const void *, size_t, int, stream_t),
    cudaMemcpyAsync_ptsz(void *, const void *, size_t, int, stream_t);
int cudaMemcpy_ptds(void *, const void *, size_t, int);
int cudaMemGetInfo(size_t *, size_t *), cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int), cudaGetSymbolSize(size_t *, const void *);
int cudaStreamCreate(stream_t *), cudaStreamDestroy(stream_t), cudaStreamSynchronize(stream_t),
    cudaStreamQuery(stream_t);
int cudaEventCreate(handle_t *), cudaEventDestroy(handle_t), cudaEventRecord(handle_t, stream_t),
    cudaEventSynchronize(handle_t);
int cudaEventElapsedTime(float *, handle_t, handle_t);
int cudaStreamBeginCapture(stream_t, int), cudaStreamEndCapture(stream_t, handle_t *);
int cudaGraphInstantiate(handle_t *, handle_t, unsigned long long), cudaGraphLaunch(handle_t, stream_t);
int cudaGraphExecDestroy(handle_t), cudaGraphDestroy(handle_t);
int cudaGetLastError(void), cudaPeekAtLastError(void), cudaRuntimeGetVersion(int *), cudaDriverGetVersion(int *);
int cudaFuncGetAttributes(void *, const void *);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
const char *cudaGetErrorName(int), *cudaGetErrorString(int);

#define EXPECT(call, want) \
  do { \
    int got_ = (call); \
    if (got_ != (want)) { \
      printf("line %d: %s gave %d (%s) instead of %d\n", __LINE__, #call, got_, cudaGetErrorName(got_), (want)); \
      exit(1); \
    } \
  } while (0)
#define OK(call) EXPECT(call, 0)
#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      printf("line %d: not so: %s\n", __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)
enum { TO_DEVICE = 1, TO_HOST = 2, IN_DEVICE = 3, BY_ADDRESS = 4 };
enum {
  INVALID_VALUE = 1,
  NO_MEMORY = 2,
  BAD_DIRECTION = 21,
  NO_CONFIGURATION = 52,
  BAD_FUNCTION = 98,
  BAD_DEVICE = 101,
  NOT_READY = 600
};

static char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .b8 table[16];\n"
                      ".visible .entry spin_ns(.param .u64 spin_ns_param_0)\n{\n  ret;\n}\n";
static void **binary;
static char table_stub[16];
static char unregistered;
static void spin_stub(unsigned long long ns);

static __attribute__((constructor)) void registration(void) {
  binary = __cudaRegisterFatBinary(image);
  __cudaRegisterFunction(binary, (const char *)spin_stub, (char *)spin_stub, "spin_ns", -1, 0, 0, 0, 0, 0);
  __cudaRegisterVar(binary, table_stub, table_stub, "table", 0, 16, 0, 0);
  __cudaRegisterFatBinaryEnd(binary);
}

static __attribute__((destructor)) void unregistration(void) { __cudaUnregisterFatBinary(binary); }

/* spin<<<1, 1, 0, stream>>>(ns) */
static int launch(unsigned long long ns, stream_t stream) {
  const dim3_t one = {1, 1, 1};
  if (__cudaPushCallConfiguration(one, one, 0, stream) == 0)
    spin_stub(ns);
  return cudaGetLastError();
}

static void spin_stub(unsigned long long ns) {
  static kernel_t kernel;
  void *arguments[] = {&ns};
  dim3_t grid, block;
  size_t shared;
  stream_t stream;
  if (!kernel)
    __cudaGetKernel(&kernel, (const void *)spin_stub);
  if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) == 0)
    __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

/* Returns how many there are. */
static int devices(void) {
  int count = 0, device = -1, version = 0;
  OK(cudaGetDeviceCount(&count));
  OK(cudaGetDevice(&device));
  CHECK(count >= 1 && device == 0);
  OK(cudaRuntimeGetVersion(&version));
  CHECK(version / 1000 == 13);
  OK(cudaDriverGetVersion(&version));
  CHECK(version / 1000 == 13);
  EXPECT(cudaSetDevice(count), BAD_DEVICE);
  EXPECT(cudaGetLastError(), BAD_DEVICE);
  OK(cudaSetDevice(count - 1));
  OK(cudaGetDevice(&device));
  CHECK(device == count - 1);
  OK(cudaSetDevice(0));
  return count;
}

static void memory(void) {
  size_t before, after, total;
  char text[100], back[100] = "";
  void *p, *q, *h;
  memset(text, 'x', sizeof text);
  OK(cudaMemGetInfo(&before, &total));
  OK(cudaMalloc(&p, 100));
  OK(cudaMallocManaged(&q, 100, 1));
  OK(cudaMemGetInfo(&after, &total));
  CHECK(before - after == 1024);
  OK(cudaMemcpy(p, text, sizeof text, TO_DEVICE));
  OK(cudaMemcpy(q, p, sizeof text, IN_DEVICE));
  OK(cudaMemcpy(back, q, sizeof text, BY_ADDRESS));
  CHECK(memcmp(text, back, sizeof text) == 0);
  OK(cudaMemset(p, 7, 50));
  OK(cudaMemcpy_ptds(back, p, sizeof text, TO_HOST));
  CHECK(back[0] == 7 && back[49] == 7 && back[50] == 'x');
  EXPECT(cudaMemcpy(p, text, 100, 9), BAD_DIRECTION);
  EXPECT(cudaGetLastError(), BAD_DIRECTION);
  OK(cudaMallocHost(&h, 100));
  OK(cudaMemcpyAsync_ptsz(h, p, 100, TO_HOST, 0));
  OK(cudaDeviceSynchronize());
  CHECK(*(char *)h == 7);
  OK(cudaFree(p));
  OK(cudaFree(q));
  OK(cudaFree(NULL));
  OK(cudaFreeHost(h));
  OK(cudaMalloc(&p, 0));
  CHECK(p == NULL);
  OK(cudaMemGetInfo(&after, &total));
  CHECK(before == after);
}

static void *other_thread(void *unused) {
  (void)unused;
  CHECK(cudaPeekAtLastError() == 0);
  return NULL;
}

static void errors(void) {
  void *p;
  pthread_t thread;
  EXPECT(cudaMalloc(&p, (size_t)1 << 62), NO_MEMORY);
  OK(cudaStreamSynchronize(0)); /* a success does not clear an earlier error */
  EXPECT(cudaPeekAtLastError(), NO_MEMORY);
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  EXPECT(cudaGetLastError(), NO_MEMORY);
  OK(cudaGetLastError());
  EXPECT(cudaFree((void *)4096), INVALID_VALUE);
  OK(cudaGetLastError() == INVALID_VALUE ? 0 : 1);
  CHECK(strcmp(cudaGetErrorName(NO_MEMORY), "cudaErrorMemoryAllocation") == 0);
  CHECK(strcmp(cudaGetErrorString(NO_MEMORY), "out of memory") == 0);
}

static void launches(void) {
  const dim3_t one = {1, 1, 1};
  unsigned long long ns = 1000;
  void *arguments[] = {&ns};
  dim3_t grid, block;
  size_t shared, size;
  stream_t stream;
  handle_t start, end;
  float ms = 0;
  int blocks = 0;
  char attributes[256], words[16] = "fifteen letters", back[16];
  OK(cudaStreamCreate(&stream));
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventRecord(start, stream));
  OK(launch(20000000, stream));
  OK(cudaEventRecord(end, stream));
  EXPECT(cudaStreamQuery(stream), NOT_READY);
  cudaGetLastError();
  OK(cudaEventSynchronize(end));
  OK(cudaEventElapsedTime(&ms, start, end));
  CHECK(ms >= 20 && ms < 500);
  OK(cudaLaunchKernel((const void *)spin_stub, one, one, arguments, 0, stream));
  EXPECT(cudaLaunchKernel(&unregistered, one, one, arguments, 0, stream), BAD_FUNCTION);
  EXPECT(cudaGetLastError(), BAD_FUNCTION);
  EXPECT(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), NO_CONFIGURATION);
  cudaGetLastError();
  OK(cudaFuncGetAttributes(attributes, (const void *)spin_stub));
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)spin_stub, 256, 0));
  CHECK(blocks > 0);
  OK(cudaGetSymbolSize(&size, table_stub));
  CHECK(size == 16);
  OK(cudaMemcpyToSymbol(table_stub, words, 16, 0, TO_DEVICE));
  OK(cudaMemcpyFromSymbol(back, table_stub, 8, 8, TO_HOST));
  CHECK(memcmp(back, words + 8, 8) == 0);
  EXPECT(cudaMemcpyToSymbol(table_stub, words, 16, 1, TO_DEVICE), INVALID_VALUE);
  cudaGetLastError();
  OK(cudaEventDestroy(start));
  OK(cudaEventDestroy(end));
  OK(cudaStreamDestroy(stream));
}

static void graphs(void) {
  handle_t graph, run;
  stream_t stream;
  void *p;
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamBeginCapture(stream, 0));
  OK(launch(1000, stream));
  OK(launch(1000, stream));
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&run, graph, 0));
  OK(cudaGraphLaunch(run, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaGraphExecDestroy(run));
  OK(cudaGraphDestroy(graph));
  OK(cudaMallocAsync(&p, 1000, stream));
  OK(cudaFreeAsync(p, stream));
  OK(cudaStreamDestroy(stream));
}

static void reset(void) {
  void *p;
  size_t before, after, total;
  OK(cudaDeviceReset());
  OK(cudaMemGetInfo(&before, &total));
  OK(cudaMalloc(&p, 1 << 20));
  OK(cudaDeviceReset());
  OK(cudaMemGetInfo(&after, &total));
  CHECK(before == after);
  OK(launch(1000, 0));
  OK(cudaDeviceSynchronize());
}

int main(void) {
  const int count = devices();
  memory();
  errors();
  launches();
  graphs();
  reset();
  printf("%d\n", count);
  return 0;
}
