/* Repeated launches of the same kernel: repeats MODE PTX N. Prints how many launches the driver received outside
 * captures. */
#include "program.h"

static uint64_t taken;

/* A kernel of two blocks; a launch with too many threads is refused. */
static void launch(CUstream stream, unsigned int threads) {
  uint64_t ns = 2000;
  void *arguments[] = {&ns};
  CUresult result = cuLaunchKernel(kernels[0], 2, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
  if (result == CUDA_SUCCESS)
    __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED);
  else if (threads == 1)
    check(result, "a launch");
}

static void refused(int n) {
  for (int i = 0; i < n; i++)
    launch(streams[0], i % 7 == 6 ? 1 << 20 : 1);
}

static void waits(int n) {
  for (int i = 0; i < n; i++) {
    launch(streams[i & 1], 1);
    if (i % 3 == 0)
      OK(cuStreamSynchronize(streams[i & 1]));
  }
}

static void captures(int n) {
  CUgraph graph;
  size_t nodes;
  for (int i = 0; i < n; i++) {
    uint64_t before;
    for (int k = 0; k < 50; k++)
      launch(streams[0], 1);
    OK(cuStreamBeginCapture_v2(streams[0], 1));
    before = taken;
    for (int k = 0; k < 5; k++)
      launch(streams[0], 1);
    taken = before;
    OK(cuStreamEndCapture(streams[0], &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    if (nodes != 5)
      exit(1);
  }
}

static pthread_barrier_t turn;

/* Two threads launch into one stream, in alternating batches of a hundred launches. */
static void *other(void *argument) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < *(int *)argument; i++) {
    pthread_barrier_wait(&turn);
    for (int k = 0; k < 100; k++)
      launch(streams[0], 1);
    pthread_barrier_wait(&turn);
  }
  return NULL;
}

static void threads(int n) {
  pthread_t thread;
  pthread_barrier_init(&turn, NULL, 2);
  pthread_create(&thread, NULL, other, &n);
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < 100; k++)
      launch(streams[0], 1);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
  }
  pthread_join(thread, NULL);
}

/* Each of these threads launches a hundred times and exits without waiting. */
static void *brief(void *argument) {
  OK(cuCtxSetCurrent(context));
  for (int k = 0; k < 100; k++)
    launch(streams[0], 1);
  return argument;
}

static void ends(int n) {
  for (int i = 0; i < n; i++) {
    pthread_t thread;
    pthread_create(&thread, NULL, brief, NULL);
    pthread_join(thread, NULL);
  }
}

/* The same kernel into the same handle, NULL or that of the thread, which is another stream on each device. A third of the
 * rounds are for the second device. */
static void devices(const char *ptx, int n) {
  CUcontext contexts[2] = {context};
  CUlibrary library;
  CUkernel kernel;
  CUdevice device;
  OK(cuDeviceGet(&device, 1));
  OK(cuCtxCreate_v2(&contexts[1], 0, device));
  OK(cuLibraryLoadFromFile(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "spin_ns"));
  kernels[0] = (CUfunction)(void *)kernel;
  for (int i = 0; i < n; i++) {
    OK(cuCtxSetCurrent(contexts[i % 3 == 2]));
    for (int k = 0; k < 100; k++)
      launch(i & 1 ? CU_STREAM_PER_THREAD : NULL, 1);
  }
  for (int i = 0; i < 2; i++) {
    OK(cuCtxSetCurrent(contexts[i]));
    OK(cuCtxSynchronize());
  }
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  start(argv[2]);
  const char *mode = argv[1];
  int n = atoi(argv[3]);
  if (!strcmp(mode, "refused"))
    refused(n);
  else if (!strcmp(mode, "waits"))
    waits(n);
  else if (!strcmp(mode, "captures"))
    captures(n);
  else if (!strcmp(mode, "threads"))
    threads(n);
  else if (!strcmp(mode, "ends"))
    ends(n);
  else if (!strcmp(mode, "devices"))
    devices(argv[2], n);
  else
    return 2;
  OK(cuCtxSynchronize());
  report("{\"taken\": %llu}\n", (unsigned long long)taken);
  return stay();
}
