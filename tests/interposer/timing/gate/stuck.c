/* Programs that hang if the bound on work in flight is strict: a stream waits for something that comes after more work
 * than the bound admits, in an order that CUDA cannot see. stuck MODE PTX ARGS... Prints one JSON line on stdout. */
#include "program.h"

enum { GEQ = 0 };

/* Gives the bound an estimate of the duration. */
static void learn(uint64_t ns, CUstream stream) {
  for (int i = 0; i < 8; i++) {
    spin(0, ns, stream);
    OK(cuStreamSynchronize(stream));
  }
}

static volatile uint32_t *word(CUdeviceptr *address) {
  void *host;
  OK(cuMemAllocHost_v2(&host, 4096));
  memset(host, 0, 4096);
  OK(cuMemHostGetDevicePointer_v2(address, host, 0));
  return host;
}

/* One stream waits for a value that the other writes later. */
static void wait_value(int n, uint64_t ns) {
  CUdeviceptr address;
  word(&address);
  learn(ns, streams[0]);
  OK(cuStreamWaitValue32_v2(streams[0], address, 1, GEQ));
  for (int i = 0; i < n; i++)
    spin(0, ns, streams[0]);
  OK(cuStreamWriteValue32_v2(streams[1], address, 1, 0));
}

/* The host sets the value once everything is queued, of a function that never ran before. */
static void opened(int n, uint64_t ns) {
  CUdeviceptr address;
  volatile uint32_t *value = word(&address);
  OK(cuStreamWaitValue32_v2(streams[0], address, 1, GEQ));
  for (int i = 0; i < n; i++)
    spin(0, ns, streams[0]);
  *value = 1;
}

static volatile int waiting, launched;

static void until_launched(void *unused) {
  (void)unused;
  waiting = 1;
  while (!launched)
    usleep(100);
}

/* A host function waits for the thread that continues to launch behind it. */
static void host_function(int n, uint64_t ns) {
  learn(ns, streams[0]);
  OK(cuLaunchHostFunc(streams[0], until_launched, NULL));
  for (int i = 0; i < n; i++)
    spin(0, ns, streams[0]);
  launched = 1;
}

struct work {
  int n;
  uint64_t ns;
};

static void *other_thread(void *argument) {
  const struct work *work = argument;
  uint64_t ns = work->ns;
  OK(cuCtxSetCurrent(context));
  while (!waiting)
    usleep(100);
  for (int i = 0; i < work->n; i++)
    launch_of(kernels[0], ns, streams[1]);
  launched = 1;
  return NULL;
}

/* It waits for another thread, which is blocked at the gate by the work behind the host function. */
static void host_thread(int n, uint64_t ns) {
  struct work work = {n, ns};
  pthread_t thread;
  learn(ns, streams[0]);
  pthread_create(&thread, NULL, other_thread, &work);
  OK(cuLaunchHostFunc(streams[0], until_launched, NULL));
  for (int i = 0; i < n; i++)
    spin(0, ns, streams[0]);
  pthread_join(thread, NULL);
  truth += (uint64_t)n * ns;
}

/* One thread drives two devices, as in a collective: each device's kernels wait until the other's have begun. */
static void devices(const char *ptx, int n, uint64_t ns) {
  CUcontext contexts[2] = {context, NULL};
  CUdeviceptr address[2];
  CUstream stream[2] = {streams[0], NULL};
  CUfunction function[2] = {kernels[0], NULL};
  uint64_t length = ns;
  word(&address[0]);
  address[1] = address[0] + 64;
  start_on(ptx, 1);
  contexts[1] = context;
  stream[1] = streams[0];
  function[1] = kernels[0];
  for (int side = 0; side < 2; side++) {
    OK(cuCtxSetCurrent(contexts[side]));
    kernels[0] = function[side];
    learn(ns, stream[side]);
  }
  for (uint32_t round = 1; round <= 5; round++)
    for (int side = 0; side < 2; side++) {
      OK(cuCtxSetCurrent(contexts[side]));
      OK(cuStreamWriteValue32_v2(stream[side], address[side], round, 0));
      OK(cuStreamWaitValue32_v2(stream[side], address[!side], round, GEQ));
      for (int i = 0; i < n; i++)
        launch_of(function[side], length, stream[side]);
      truth += (uint64_t)n * ns;
    }
  for (int side = 0; side < 2; side++) {
    OK(cuCtxSetCurrent(contexts[side]));
    OK(cuCtxSynchronize());
  }
}

static void put_file(const char *path, const void *bytes, size_t size) {
  char made[512];
  FILE *file;
  snprintf(made, sizeof made, "%s.new", path);
  file = fopen(made, "w");
  if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) || rename(made, path))
    exit(2);
}

/* An event shared by two processes: recorded here, behind something that happens only after a launch that may wait for
 * a lease. */
static void ipc_give(const char *path, int n, uint64_t ns) {
  CUipcEventHandle handle;
  CUdeviceptr address;
  CUevent event;
  char go;
  word(&address);
  OK(cuEventCreate(&event, 2 | 4 /* no timing, interprocess */));
  OK(cuIpcGetEventHandle(&handle, event));
  learn(ns, streams[1]);
  OK(cuStreamWaitValue32_v2(streams[0], address, 1, GEQ));
  OK(cuEventRecord(event, streams[0]));
  put_file(path, &handle, sizeof handle);
  if (read(0, &go, 1) != 1)
    exit(2);
  for (int i = 0; i < n; i++)
    spin(0, ns, streams[1]);
  OK(cuStreamWriteValue32_v2(streams[1], address, 1, 0));
}

static void ipc_take(const char *path, int n, uint64_t ns) {
  CUipcEventHandle handle;
  CUevent event;
  FILE *file = fopen(path, "r");
  if (!file || fread(&handle, 1, sizeof handle, file) != sizeof handle)
    exit(2);
  learn(ns, streams[0]);
  OK(cuIpcOpenEventHandle(&event, handle));
  OK(cuStreamWaitEvent(streams[0], event, 0));
  for (int i = 0; i < n; i++)
    spin(0, ns, streams[0]);
}

int main(int argc, char **argv) {
  const char *mode = argv[1], *ptx = argv[2];
  uint64_t began, ns;
  int n;
  if (argc < 5)
    return 2;
  n = atoi(argv[3]);
  ns = number(argv[4]);
  start(ptx);
  began = now();
  if (!strcmp(mode, "waitvalue"))
    wait_value(n, ns);
  else if (!strcmp(mode, "opened"))
    opened(n, ns);
  else if (!strcmp(mode, "hostfunction"))
    host_function(n, ns);
  else if (!strcmp(mode, "hostthread"))
    host_thread(n, ns);
  else if (!strcmp(mode, "devices"))
    devices(ptx, n, ns);
  else if (!strcmp(mode, "ipcgive"))
    ipc_give(argv[5], n, ns);
  else if (!strcmp(mode, "ipctake"))
    ipc_take(argv[5], n, ns);
  else
    return 2;
  OK(cuCtxSynchronize());
  report("{\"truth_ns\": %llu, \"wall_ns\": %llu}\n", (unsigned long long)truth, (unsigned long long)(now() - began));
  return stay();
}
