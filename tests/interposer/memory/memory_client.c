/* A program that allocates memory through graphs, pools and streams. Like client.c it reads one command per line from
 * stdin and answers "result value value"; objects it created are referenced by number, counted per kind. Stream 0 is
 * the default stream. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim_api.h"

enum { MAX = 4096 };
static CUcontext contexts[MAX];
static CUdeviceptr pointers[MAX];
static CUmemoryPool pools[MAX];
static CUstream streams[MAX];
static CUevent events[MAX];
static CUgraph graphs[MAX];
static CUgraphNode last[MAX]; /* the last node of each graph, which the next node depends on */
static CUgraphExec execs[MAX];
static int ncontexts, npointers, npools, nstreams = 1, nevents, ngraphs, nexecs;
static volatile unsigned *gate; /* streams that wait for it block while it is 0 */

static CUmemPoolProps properties(int device, size_t most) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  props.maxSize = most;
  return props;
}

static CUresult add_alloc(int graph, size_t bytes, int device, int by_params) {
  CUresult r;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = properties(device, 0), .bytesize = bytes};
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = alloc};
  if (by_params) {
    r = cuGraphAddNode_v2(&last[graph], graphs[graph], &last[graph], NULL, last[graph] != NULL, &params);
    alloc = params.alloc;
  } else {
    r = cuGraphAddMemAllocNode(&last[graph], graphs[graph], &last[graph], last[graph] != NULL, &alloc);
  }
  if (r == CUDA_SUCCESS)
    pointers[npointers++] = alloc.dptr;
  return r;
}

/* A captured graph of `count` allocations, which are freed in the graph or not. */
static CUresult capture(CUstream stream, size_t count, size_t bytes, int frees) {
  CUresult r = cuStreamBeginCapture_v2(stream, 0), end;
  int first = npointers;
  for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
    r = cuMemAllocAsync(&pointers[npointers], bytes, stream);
    npointers += r == CUDA_SUCCESS;
  }
  for (int i = first; i < npointers && frees && r == CUDA_SUCCESS; i++)
    r = cuMemFreeAsync(pointers[i], stream);
  end = cuStreamEndCapture(stream, &graphs[ngraphs]);
  ngraphs += end == CUDA_SUCCESS;
  return r ? r : end;
}

static CUresult hold(CUstream stream) {
  void *at;
  if (!gate) {
    CUresult r = cuMemHostAlloc(&at, 4096, 2 /* mapped */);
    if (r)
      return r;
    gate = at;
  }
  *gate = 0;
  return cuStreamWaitValue32_v2(stream, (CUdeviceptr)(size_t)gate, 1, 0 /* at least */);
}

/* Allocates in steps from a pool or the default pool until refused; returns the sum. */
static size_t fill(size_t step, int pool, CUstream stream) {
  size_t sum = 0;
  while (npointers < MAX &&
         (pool < 0 ? cuMemAllocAsync(&pointers[npointers], step, stream)
                   : cuMemAllocFromPoolAsync(&pointers[npointers], step, pools[pool], stream)) == CUDA_SUCCESS) {
    npointers++;
    sum += step;
  }
  return sum;
}

/* ---- races ---- */

struct work {
  CUcontext context;
  size_t rounds, step;
  size_t refused;
};

static void *churn_pool(void *argument) {
  struct work *work = argument;
  CUstream stream;
  cuCtxSetCurrent(work->context);
  cuStreamCreate(&stream, 1);
  for (size_t i = 0; i < work->rounds; i++) {
    CUdeviceptr at;
    if (cuMemAllocAsync(&at, work->step * (1 + i % 3), stream) != CUDA_SUCCESS)
      work->refused++;
    else
      cuMemFreeAsync(at, stream);
    if (i % 4 == 0)
      cuStreamSynchronize(stream);
  }
  cuStreamSynchronize(stream);
  cuStreamDestroy_v2(stream);
  return NULL;
}

static void *churn_plain(void *argument) {
  struct work *work = argument;
  CUstream stream;
  cuCtxSetCurrent(work->context);
  cuStreamCreate(&stream, 1);
  for (size_t i = 0; i < work->rounds; i++) {
    CUdeviceptr at;
    if (cuMemAlloc_v2(&at, work->step * (1 + i % 3)) != CUDA_SUCCESS)
      work->refused++;
    else
      cuMemFreeAsync(at, stream);
  }
  cuStreamSynchronize(stream);
  cuStreamDestroy_v2(stream);
  return NULL;
}

static void *churn_graph(void *argument) {
  struct work *work = argument;
  CUstream stream;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = properties(0, 0), .bytesize = work->step};
  cuCtxSetCurrent(work->context);
  cuStreamCreate(&stream, 1);
  cuGraphCreate(&graph, 0);
  cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc);
  cuGraphAddMemFreeNode(&node, graph, &node, 1, alloc.dptr);
  cuGraphInstantiateWithFlags(&exec, graph, 0);
  for (size_t i = 0; i < work->rounds; i++) {
    work->refused += cuGraphLaunch(exec, stream) != CUDA_SUCCESS;
    if (i % 3 == 0)
      cuStreamSynchronize(stream);
    if (i % 5 == 0)
      cuDeviceGraphMemTrim(0);
  }
  cuStreamSynchronize(stream);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  cuStreamDestroy_v2(stream);
  cuDeviceGraphMemTrim(0);
  return NULL;
}

/* Two threads of each kind; returns the number of refusals. */
static size_t race(size_t rounds, size_t step) {
  void *(*const sorts[])(void *) = {churn_pool, churn_plain, churn_graph};
  struct work work[6];
  pthread_t thread[6];
  size_t refused = 0;
  CUcontext context;
  cuCtxGetCurrent(&context);
  for (int i = 0; i < 6; i++) {
    work[i] = (struct work){context, rounds, step, 0};
    pthread_create(&thread[i], NULL, sorts[i % 3], &work[i]);
  }
  for (int i = 0; i < 6; i++) {
    pthread_join(thread[i], NULL);
    refused += work[i].refused;
  }
  cuCtxSynchronize();
  return refused;
}

/* ---- pools of another process ---- */

enum { DESCRIPTOR = 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */ };

/* Exports the pool to a descriptor in *fd, and the pointer's export data to a memfd in *data_fd, which other processes
 * open by this process's pid. */
static CUresult export_pool(CUmemoryPool pool, CUdeviceptr pointer, size_t *fd, size_t *data_fd) {
  CUmemPoolPtrExportData data;
  int made = -1, file = memfd_create("data", 0);
  CUresult r = cuMemPoolExportToShareableHandle(&made, pool, DESCRIPTOR, 0);
  if (r == CUDA_SUCCESS)
    r = cuMemPoolExportPointer(&data, pointer);
  if (r == CUDA_SUCCESS && write(file, &data, sizeof data) != sizeof data)
    r = 999;
  *fd = (size_t)made;
  *data_fd = (size_t)file;
  return r;
}

static CUresult import_pool(size_t pid, size_t fd, size_t data_fd) {
  char path[64];
  CUmemPoolPtrExportData data;
  CUresult r;
  snprintf(path, sizeof path, "/proc/%zu/fd/%zu", pid, fd);
  int pool = open(path, O_RDWR);
  snprintf(path, sizeof path, "/proc/%zu/fd/%zu", pid, data_fd);
  int file = open(path, O_RDWR);
  if (pread(file, &data, sizeof data, 0) != sizeof data)
    return 999;
  r = cuMemPoolImportFromShareableHandle(&pools[npools], (void *)(size_t)pool, DESCRIPTOR, 0);
  if (r == CUDA_SUCCESS)
    r = cuMemPoolImportPointer(&pointers[npointers], pools[npools], &data);
  npools += r == CUDA_SUCCESS;
  npointers += r == CUDA_SUCCESS;
  return r;
}

/* ---- commands ---- */

static int obey(const char *verb, size_t a, size_t b, size_t c) {
  CUresult r = CUDA_SUCCESS;
  size_t one = 0, two = 0;
  int value = 0;
  if (!strcmp(verb, "init"))
    r = cuInit(0);
  else if (!strcmp(verb, "retain")) {
    r = cuDevicePrimaryCtxRetain(&contexts[ncontexts], (CUdevice)a);
    if (r == 0)
      cuCtxSetCurrent(contexts[ncontexts++]);
  } else if (!strcmp(verb, "release"))
    r = cuDevicePrimaryCtxRelease_v2((CUdevice)a);
  else if (!strcmp(verb, "reset"))
    r = cuDevicePrimaryCtxReset_v2((CUdevice)a);
  else if (!strcmp(verb, "ctx"))
    r = cuCtxCreate_v2(&contexts[ncontexts], 0, (CUdevice)a), ncontexts += r == 0;
  else if (!strcmp(verb, "destroy"))
    r = cuCtxDestroy_v2(contexts[a]);
  else if (!strcmp(verb, "attribute"))
    r = cuDeviceGetAttribute(&value, (int)a, 0), one = (size_t)value;
  else if (!strcmp(verb, "alloc"))
    r = cuMemAlloc_v2(&pointers[npointers], a), npointers += r == 0;
  else if (!strcmp(verb, "managed"))
    r = cuMemAllocManaged(&pointers[npointers], a, (unsigned)b), npointers += r == 0;
  else if (!strcmp(verb, "free"))
    r = cuMemFree_v2(pointers[a]);
  else if (!strcmp(verb, "freeasync"))
    r = cuMemFreeAsync(pointers[a], streams[b]);
  else if (!strcmp(verb, "freeasyncat"))
    r = cuMemFreeAsync(a, streams[b]);
  else if (!strcmp(verb, "stream"))
    r = cuStreamCreate(&streams[nstreams], 1), nstreams += r == 0;
  else if (!strcmp(verb, "unstream"))
    r = cuStreamDestroy_v2(streams[a]);
  else if (!strcmp(verb, "hold"))
    r = hold(streams[a]);
  else if (!strcmp(verb, "go"))
    *gate = 1;
  else if (!strcmp(verb, "sync"))
    r = cuStreamSynchronize(streams[a]);
  else if (!strcmp(verb, "syncall"))
    r = cuCtxSynchronize();
  else if (!strcmp(verb, "event"))
    r = cuEventCreate(&events[nevents], 0), nevents += r == 0;
  else if (!strcmp(verb, "record"))
    r = cuEventRecord(events[a], streams[b]);
  else if (!strcmp(verb, "wait"))
    r = cuEventSynchronize(events[a]);
  else if (!strcmp(verb, "async"))
    r = cuMemAllocAsync(&pointers[npointers], a, streams[b]), npointers += r == 0;
  else if (!strcmp(verb, "frompool"))
    r = cuMemAllocFromPoolAsync(&pointers[npointers], a, pools[b], streams[c]), npointers += r == 0;
  else if (!strcmp(verb, "pool")) {
    CUmemPoolProps props = properties(0, a);
    r = cuMemPoolCreate(&pools[npools], &props), npools += r == 0;
  } else if (!strcmp(verb, "place")) { /* a pool with this location and allocation type */
    CUmemPoolProps props = {.allocType = (int)b, .location = {(int)a, 0}};
    r = cuMemPoolCreate(&pools[npools], &props), npools += r == 0;
  } else if (!strcmp(verb, "sharedpool")) {
    CUmemPoolProps props = properties(0, 0);
    props.handleTypes = DESCRIPTOR;
    r = cuMemPoolCreate(&pools[npools], &props), npools += r == 0;
  } else if (!strcmp(verb, "export"))
    r = export_pool(pools[a], pointers[b], &one, &two);
  else if (!strcmp(verb, "import"))
    r = import_pool(a, b, c);
  else if (!strcmp(verb, "default"))
    r = cuDeviceGetDefaultMemPool(&pools[npools], (CUdevice)a), npools += r == 0;
  else if (!strcmp(verb, "unpool"))
    r = cuMemPoolDestroy(pools[a]);
  else if (!strcmp(verb, "trim"))
    r = cuMemPoolTrimTo(pools[a], b);
  else if (!strcmp(verb, "threshold"))
    r = cuMemPoolSetAttribute(pools[a], 4, &b);
  else if (!strcmp(verb, "reserved"))
    r = cuMemPoolGetAttribute(pools[a], 5, &one);
  else if (!strcmp(verb, "fill"))
    one = fill(a, (int)b - 1, streams[c]);
  else if (!strcmp(verb, "graph"))
    r = cuGraphCreate(&graphs[ngraphs], 0), ngraphs += r == 0;
  else if (!strcmp(verb, "ungraph"))
    r = cuGraphDestroy(graphs[a]);
  else if (!strcmp(verb, "node"))
    r = add_alloc((int)a, b, (int)c, 0);
  else if (!strcmp(verb, "node2"))
    r = add_alloc((int)a, b, (int)c, 1);
  else if (!strcmp(verb, "nodefree"))
    r = cuGraphAddMemFreeNode(&last[a], graphs[a], &last[a], last[a] != NULL, pointers[b]);
  else if (!strcmp(verb, "child"))
    r = cuGraphAddChildGraphNode(&last[a], graphs[a], &last[a], last[a] != NULL, graphs[b]);
  else if (!strcmp(verb, "empty"))
    r = cuGraphAddEmptyNode(&last[a], graphs[a], &last[a], last[a] != NULL);
  else if (!strcmp(verb, "capture"))
    r = capture(streams[1], a, b, (int)c);
  else if (!strcmp(verb, "exec"))
    r = cuGraphInstantiateWithFlags(&execs[nexecs], graphs[a], b), nexecs += r == 0;
  else if (!strcmp(verb, "execup")) { /* instantiates and uploads */
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = 2, .hUploadStream = streams[b]};
    r = cuGraphInstantiateWithParams(&execs[nexecs], graphs[a], &params), nexecs += r == 0;
  } else if (!strcmp(verb, "unexec"))
    r = cuGraphExecDestroy(execs[a]);
  else if (!strcmp(verb, "launch"))
    r = cuGraphLaunch(execs[a], streams[b]);
  else if (!strcmp(verb, "upload"))
    r = cuGraphUpload(execs[a], streams[b]);
  else if (!strcmp(verb, "graphtrim"))
    r = cuDeviceGraphMemTrim((CUdevice)a);
  else if (!strcmp(verb, "graphmem"))
    r = cuDeviceGetGraphMemAttribute((CUdevice)a, 2, &one);
  else if (!strcmp(verb, "race"))
    one = race(a, b);
  else if (!strcmp(verb, "exit"))
    exit((int)a);
  else if (!strcmp(verb, "fork")) {
    int status;
    pid_t child = fork();
    if (child == 0)
      _exit(cuInit(0) & 127);
    waitpid(child, &status, 0);
    one = (size_t)WEXITSTATUS(status);
  } else if (!strcmp(verb, "execself"))
    execl("/proc/self/exe", "memory_client", (char *)NULL);
  else
    return 0;
  printf("%d %zu %zu\n", (int)r, one, two);
  fflush(stdout);
  return 1;
}

int main(void) {
  char line[256], verb[32];
  while (fgets(line, sizeof line, stdin)) {
    size_t a = 0, b = 0, c = 0;
    if (sscanf(line, "%31s %zu %zu %zu", verb, &a, &b, &c) < 1 || !obey(verb, a, b, c)) {
      printf("what? %s", line);
      return 2;
    }
  }
  return 0;
}
