/* A process that executes operations chosen by a test: reads one command per line, answers "result value" on one line.
 * Handles and addresses are passed to the test as numbers and back, including ones that are no longer valid or never
 * were. Every command that needs a context names it first (0: none). Linked with -lcuda, independent of gpushare. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_api.h"

static const CUmemLocation DEVICE = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

static void *handle(size_t number) { return (void *)(uintptr_t)number; }

static CUresult create(size_t bytes, size_t *made) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = DEVICE};
  CUmemGenericAllocationHandle physical = 0;
  CUresult result = cuMemCreate(&physical, bytes, &prop, 0);
  *made = physical;
  return result;
}

static CUresult hold(size_t address, size_t *made) {
  CUmemGenericAllocationHandle physical = 0;
  CUresult result = cuMemRetainAllocationHandle(&physical, handle(address));
  *made = physical;
  return result;
}

static CUresult pool(size_t *made) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = DEVICE};
  return cuMemPoolCreate((CUmemoryPool *)made, &props);
}

/* Executable graphs, by the address that their only node allocates. */
static struct graph {
  CUdeviceptr address;
  CUgraph graph;
  CUgraphExec exec;
} graphs[8];

static struct graph *graph_at(size_t address) {
  size_t i = 0;
  while (graphs[i].address != address)
    if (++i == sizeof graphs / sizeof graphs[0])
      _exit(2);
  return &graphs[i];
}

static CUresult make_graph(size_t bytes, size_t *made) {
  CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = bytes};
  struct graph *graph = graph_at(0);
  CUgraphNode node;
  alloc.poolProps = (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = DEVICE};
  CUresult result = cuGraphCreate(&graph->graph, 0);
  if (result == CUDA_SUCCESS)
    result = cuGraphAddMemAllocNode(&node, graph->graph, NULL, 0, &alloc);
  if (result == CUDA_SUCCESS)
    result = cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0);
  *made = graph->address = alloc.dptr;
  return result;
}

static CUresult launch(size_t address) {
  CUresult result = cuGraphLaunch(graph_at(address)->exec, NULL), waited = cuCtxSynchronize();
  return result ? result : waited;
}

static CUresult end_graph(size_t address) {
  struct graph *graph = graph_at(address);
  CUresult result = cuGraphExecDestroy(graph->exec), other = cuGraphDestroy(graph->graph);
  graph->address = 0;
  return result ? result : other;
}

static CUresult pitch(size_t width, size_t height, size_t *made) {
  CUdeviceptr at = 0;
  size_t row;
  CUresult result = cuMemAllocPitch_v2(&at, &row, width, height, 4);
  *made = at;
  return result;
}

static CUresult array(size_t width, size_t height, size_t *made) {
  CUDA_ARRAY_DESCRIPTOR descriptor = {width, height, 0x20 /* float */, 4};
  return cuArrayCreate_v2((CUarray *)made, &descriptor);
}

/* Waits, so that memory freed in stream order is released, and a pool releases what it does not need. */
static CUresult free_async(size_t address) {
  CUresult result = cuMemFreeAsync(address, NULL), waited = cuCtxSynchronize();
  return result ? result : waited;
}

/* Refused without a context, because the free would happen and the wait would fail. */
static CUresult free_now(size_t address) {
  CUresult result = cuCtxSynchronize();
  if (result == CUDA_SUCCESS)
    result = cuMemFree_v2(address);
  return result ? result : cuCtxSynchronize();
}

struct work {
  size_t context, bytes, made;
  CUresult result;
};

static void *allocate_in_thread(void *argument) {
  struct work *work = argument;
  CUdeviceptr at = 0;
  work->result = cuCtxSetCurrent(handle(work->context));
  if (work->result == CUDA_SUCCESS)
    work->result = cuMemAlloc_v2(&at, work->bytes);
  work->made = at;
  return NULL;
}

static CUresult in_thread(size_t context, size_t bytes, size_t *made) {
  struct work work = {context, bytes, 0, CUDA_SUCCESS};
  pthread_t thread;
  pthread_create(&thread, NULL, allocate_in_thread, &work);
  pthread_join(thread, NULL);
  *made = work.made;
  return work.result;
}

/* Allocates in steps until refused; the sum in *made. */
static CUresult fill(size_t step, int physical, size_t *made) {
  CUresult result;
  size_t handle_of;
  CUdeviceptr at;
  *made = 0;
  while ((result = physical ? create(step, &handle_of) : cuMemAlloc_v2(&at, step)) == CUDA_SUCCESS)
    *made += step;
  return result;
}

/* Forks a child that creates a context and allocates, or does nothing if bytes is 0, and then keeps running. Returns
 * its pid, after its result. */
static CUresult forked(size_t bytes, size_t *made) {
  int ends[2];
  CUresult result = CUDA_SUCCESS;
  if (pipe(ends) < 0)
    return CUDA_ERROR_UNKNOWN;
  pid_t pid = fork();
  if (pid == 0) {
    CUcontext context;
    CUdeviceptr at;
    if (bytes) {
      result = cuInit(0);
      if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, 0);
      if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
      if (result == CUDA_SUCCESS)
        result = cuMemAlloc_v2(&at, bytes);
    }
    if (write(ends[1], &result, sizeof result) != sizeof result)
      _exit(1);
    for (;;)
      pause();
  }
  *made = (size_t)pid;
  if (pid < 0 || read(ends[0], &result, sizeof result) != sizeof result)
    result = CUDA_ERROR_UNKNOWN;
  close(ends[0]);
  close(ends[1]);
  return result;
}

static int obey(const char *verb, size_t context, size_t a, size_t b, size_t *made) {
  CUresult r = CUDA_SUCCESS;
  if (!strcmp(verb, "destroy"))
    return cuCtxDestroy_v2(handle(context));
  if (!strcmp(verb, "init"))
    return cuInit(0);
  if (!strcmp(verb, "retain"))
    return cuDevicePrimaryCtxRetain((CUcontext *)made, 0);
  if (!strcmp(verb, "unretain"))
    return cuDevicePrimaryCtxRelease_v2(0);
  if (!strcmp(verb, "reset"))
    return cuDevicePrimaryCtxReset_v2(0);
  if (!strcmp(verb, "ctx"))
    return cuCtxCreate_v2((CUcontext *)made, 0, 0);
  if (!strcmp(verb, "fork"))
    return forked(a, made);
  if ((r = cuCtxSetCurrent(handle(context))))
    return r;
  CUdeviceptr at = 0;
  size_t free, total;
  if (!strcmp(verb, "alloc"))
    r = cuMemAlloc_v2(&at, a), *made = at;
  else if (!strcmp(verb, "managed"))
    r = cuMemAllocManaged(&at, a, 1), *made = at;
  else if (!strcmp(verb, "pitch"))
    r = pitch(a, b, made);
  else if (!strcmp(verb, "thread"))
    r = in_thread(context, a, made);
  else if (!strcmp(verb, "free"))
    r = free_now(a);
  else if (!strcmp(verb, "array"))
    r = array(a, b, made);
  else if (!strcmp(verb, "unarray"))
    r = cuArrayDestroy(handle(a));
  else if (!strcmp(verb, "async"))
    r = cuMemAllocAsync(&at, a, NULL), *made = at;
  else if (!strcmp(verb, "frompool"))
    r = cuMemAllocFromPoolAsync(&at, a, handle(b), NULL), *made = at;
  else if (!strcmp(verb, "freeasync"))
    r = free_async(a);
  else if (!strcmp(verb, "pool"))
    r = pool(made);
  else if (!strcmp(verb, "unpool"))
    r = cuMemPoolDestroy(handle(a));
  else if (!strcmp(verb, "graph"))
    r = make_graph(a, made);
  else if (!strcmp(verb, "launch"))
    r = launch(a);
  else if (!strcmp(verb, "ungraph"))
    r = end_graph(a);
  else if (!strcmp(verb, "trim"))
    r = cuDeviceGraphMemTrim(0);
  else if (!strcmp(verb, "create"))
    r = create(a, made);
  else if (!strcmp(verb, "drop"))
    r = cuMemRelease(a);
  else if (!strcmp(verb, "hold"))
    r = hold(a, made);
  else if (!strcmp(verb, "space"))
    r = cuMemAddressReserve(&at, a, 0, 0, 0), *made = at;
  else if (!strcmp(verb, "map"))
    r = cuMemMap(a, 2 << 20, 0, b, 0);
  else if (!strcmp(verb, "unmap"))
    r = cuMemUnmap(a, 2 << 20);
  else if (!strcmp(verb, "available"))
    r = cuMemGetInfo_v2(made, &total);
  else if (!strcmp(verb, "total"))
    r = cuMemGetInfo_v2(&free, &total), *made = total;
  else if (!strcmp(verb, "fill"))
    r = fill(a, 0, made);
  else if (!strcmp(verb, "fillphysical"))
    r = fill(a, 1, made);
  else
    _exit(2);
  return r;
}

int main(int argc, char **argv) {
  char line[256], verb[32];
  (void)argc;
  signal(SIGCHLD, SIG_IGN);
  setvbuf(stdin, NULL, _IONBF, 0); /* input that was read ahead is lost in an exec */
  while (fgets(line, sizeof line, stdin)) {
    size_t context = 0, a = 0, b = 0, made = 0;
    if (sscanf(line, "%31s %zu %zu %zu", verb, &context, &a, &b) < 1)
      return 2;
    if (!strcmp(verb, "exec")) {
      execv("/proc/self/exe", argv);
      return 3;
    }
    int result = !strcmp(verb, "hello") ? 0 : obey(verb, context, a, b, &made);
    printf("%d %zu\n", result, made);
    fflush(stdout);
  }
  return 0;
}
