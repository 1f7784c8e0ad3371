/* A program that does the same step again and again, for measuring what a link costs it.
 *
 * steps PTX N OP...: N steps of these operations, each on one stream:
 *   k NS COUNT   launches of a kernel that takes NS           g NS COUNT   the same as one launch of a graph
 *   i BYTES      a copy to the device                         I BYTES      the same, not waited for
 *   o BYTES      a copy from the device                       O BYTES      the same, not waited for
 *   s            waits for the stream                         c            waits for the context
 *   e            records an event and waits for it            q            the same by asking until it is done
 *   a BYTES      allocates device memory and frees it         m            asks what memory is free
 *   w NS         computes on the CPU
 *
 * Prints how long all of it took from the first call on, and the steps alone, in seconds, as JSON. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim_api.h"

enum { OPS_MAX = 32, HOST_BYTES = 64 << 20 };

struct op {
  char what;
  uint64_t value, count;
  CUgraphExec graph;
};

static struct {
  CUfunction spin;
  CUstream stream;
  CUevent event;
  CUdeviceptr memory;
  void *host;
} p;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(1);
}

static void launch(uint64_t ns, uint64_t count) {
  void *arguments[] = {&ns};
  for (uint64_t i = 0; i < count; i++)
    must(cuLaunchKernel(p.spin, 1, 1, 1, 1, 1, 1, 0, p.stream, arguments, NULL), "cuLaunchKernel");
}

static CUgraphExec graph_of(uint64_t ns, uint64_t count) {
  CUgraph graph;
  CUgraphExec executable;
  must(cuStreamBeginCapture_v2(p.stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  launch(ns, count);
  must(cuStreamEndCapture(p.stream, &graph), "cuStreamEndCapture");
  must(cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
  return executable;
}

static void ask(void) {
  CUresult result;
  must(cuEventRecord(p.event, p.stream), "cuEventRecord");
  while ((result = cuEventQuery(p.event)) == CUDA_ERROR_NOT_READY)
    ;
  must(result, "cuEventQuery");
}

static void compute(uint64_t ns) {
  double until = now() + (double)ns / 1e9;
  while (now() < until)
    ;
}

static void allocate(uint64_t bytes) {
  CUdeviceptr more;
  must(cuMemAlloc_v2(&more, bytes), "cuMemAlloc");
  must(cuMemFree_v2(more), "cuMemFree");
}

static void step(const struct op *op) {
  size_t unused, total;
  switch (op->what) {
    case 'k': launch(op->value, op->count); break;
    case 'g': must(cuGraphLaunch(op->graph, p.stream), "cuGraphLaunch"); break;
    case 'i': must(cuMemcpyHtoD_v2(p.memory, p.host, op->value), "cuMemcpyHtoD"); break;
    case 'I': must(cuMemcpyHtoDAsync_v2(p.memory, p.host, op->value, p.stream), "cuMemcpyHtoDAsync"); break;
    case 'o': must(cuMemcpyDtoH_v2(p.host, p.memory, op->value), "cuMemcpyDtoH"); break;
    case 'O': must(cuMemcpyDtoHAsync_v2(p.host, p.memory, op->value, p.stream), "cuMemcpyDtoHAsync"); break;
    case 's': must(cuStreamSynchronize(p.stream), "cuStreamSynchronize"); break;
    case 'c': must(cuCtxSynchronize(), "cuCtxSynchronize"); break;
    case 'e':
      must(cuEventRecord(p.event, p.stream), "cuEventRecord");
      must(cuEventSynchronize(p.event), "cuEventSynchronize");
      break;
    case 'q': ask(); break;
    case 'a': allocate(op->value); break;
    case 'm': must(cuMemGetInfo_v2(&unused, &total), "cuMemGetInfo"); break;
    case 'w': compute(op->value); break;
    default: fprintf(stderr, "no such operation: %c\n", op->what); exit(2);
  }
}

static const char *text_of(const char *path) {
  static char text[1 << 16];
  FILE *file = fopen(path, "r");
  if (file == NULL)
    exit(2);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return text;
}

static void begin(const char *ptx) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, 0), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
  must(cuModuleGetFunction(&p.spin, module, "spin_ns"), "cuModuleGetFunction");
  must(cuStreamCreate(&p.stream, 0), "cuStreamCreate");
  must(cuEventCreate(&p.event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  must(cuMemAlloc_v2(&p.memory, HOST_BYTES), "cuMemAlloc");
}

int main(int argc, char **argv) {
  struct op ops[OPS_MAX];
  int count = 0;
  if (argc < 4)
    return 2;
  const char *ptx = text_of(argv[1]);
  p.host = malloc(HOST_BYTES);
  memset(p.host, 1, HOST_BYTES);
  double began = now();
  begin(ptx);
  for (int i = 3; i < argc && count < OPS_MAX; i++) {
    char what = argv[i][0];
    ops[count] = (struct op){.what = what};
    if (strchr("kgiIoOaw", what) && i + 1 < argc)
      ops[count].value = strtoull(argv[++i], NULL, 10);
    if (strchr("kg", what) && i + 1 < argc)
      ops[count].count = strtoull(argv[++i], NULL, 10);
    if (what == 'g')
      ops[count].graph = graph_of(ops[count].value, ops[count].count);
    count++;
  }
  double first = now();
  for (long n = strtol(argv[2], NULL, 10); n > 0; n--)
    for (int i = 0; i < count; i++)
      step(&ops[i]);
  double end = now();
  printf("{\"seconds\": %.6f, \"steps\": %.6f}\n", end - began, end - first);
  return 0;
}
