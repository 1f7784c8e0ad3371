/* Ranks of a collective: ranks MODE PTX DEVICE KEY RANKS [ARGS...]. Linked with -lcuda, independent of gpushare.
 *
 * steps    reads commands, a letter and nanoseconds per line, and prints when each was complete:
 *            c collective
 *            k compute, in the stream of the collectives
 *            l compute in 64 blocks, in another stream
 *            s wait for both streams
 * loop COMPUTE NS MANY ROUNDS  compute and a collective, MANY times before it waits, ROUNDS times
 * both COMPUTE NS MANY ROUNDS  the same on two devices from one thread
 * job COMPUTE NS MANY ROUNDS   one process per rank, each on its own device */
#include <sys/wait.h>

#include "program.h"

enum { DEVICES = 2 };

static uint64_t key, ranks;
static CUfunction reduce[DEVICES], compute[DEVICES];
static CUcontext contexts[DEVICES];
static CUstream stream[DEVICES], beside;

static const char text[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry ncclDevKernel_AllReduce(.param .u64 ns, .param .u64 key, .param .u64 ranks)\n{\n\tret;\n}\n"
    ".visible .entry spin_ns(.param .u64 ns)\n{\n\tret;\n}\n";

static void open_device(int which, int ordinal) {
  CUdevice device;
  CUmodule module;
  OK(cuDeviceGet(&device, ordinal));
  OK(cuCtxCreate_v2(&contexts[which], 0, device));
  OK(cuModuleLoadData(&module, text));
  OK(cuModuleGetFunction(&reduce[which], module, "ncclDevKernel_AllReduce"));
  OK(cuModuleGetFunction(&compute[which], module, "spin_ns"));
  OK(cuStreamCreate(&stream[which], 1));
}

static void run(CUfunction function, unsigned int blocks, uint64_t ns, CUstream on) {
  void *arguments[] = {&ns, &key, &ranks};
  OK(cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, on, arguments, NULL));
}

static void steps(void) {
  char line[64];
  unsigned long long ns;
  char what;
  OK(cuStreamCreate(&beside, 1));
  while (fgets(line, sizeof line, stdin)) {
    uint64_t began = now();
    if (sscanf(line, "%c %llu", &what, &ns) != 2)
      exit(2);
    if (what == 'c')
      run(reduce[0], 1, ns, stream[0]);
    if (what == 'k')
      run(compute[0], 1, ns, stream[0]);
    if (what == 'l')
      run(compute[0], 64, ns, beside);
    if (what == 's')
      OK(cuStreamSynchronize(stream[0]));
    if (what == 's')
      OK(cuStreamSynchronize(beside));
    report("{\"took_ns\": %llu, \"at\": %llu}\n", (unsigned long long)(now() - began), (unsigned long long)now());
  }
}

static void loop(int devices, uint64_t compute_ns, uint64_t ns, int many, int rounds) {
  uint64_t worst = 0, first = now();
  for (int round = 0; round < rounds; round++) {
    uint64_t began = now();
    for (int i = 0; i < many; i++)
      for (int d = 0; d < devices; d++) {
        OK(cuCtxSetCurrent(contexts[d]));
        run(compute[d], 1, compute_ns, stream[d]);
        run(reduce[d], 1, ns, stream[d]);
      }
    for (int d = 0; d < devices; d++) {
      OK(cuCtxSetCurrent(contexts[d]));
      OK(cuStreamSynchronize(stream[d]));
    }
    if (now() - began > worst)
      worst = now() - began;
  }
  report("{\"wall_ns\": %llu, \"worst_ns\": %llu}\n", (unsigned long long)(now() - first), (unsigned long long)worst);
  while (read(0, &(char){0}, 1) > 0) { /* the test reads the pages while the process is still alive */
  }
}

/* Forks one process per rank before any CUDA call; returns true in the children. */
static bool split(int *device) {
  int failed = 0, status;
  for (*device = 0; *device < (int)ranks; ++*device) {
    pid_t child = fork();
    if (child == 0)
      return true;
    failed |= child < 0;
  }
  while (wait(&status) > 0)
    failed |= status;
  exit(failed != 0);
}

int main(int argc, char **argv) {
  if (argc < 6)
    return 2;
  int device = atoi(argv[3]), devices = strcmp(argv[1], "both") ? 1 : DEVICES;
  key = number(argv[4]);
  ranks = number(argv[5]);
  if (!strcmp(argv[1], "job") && !split(&device))
    return 2;
  OK(cuInit(0));
  for (int i = 0; i < devices; i++)
    open_device(i, devices == 1 ? device : i);
  if (!strcmp(argv[1], "steps"))
    steps();
  else if (argc == 10)
    loop(devices, number(argv[6]), number(argv[7]), atoi(argv[8]), atoi(argv[9]));
  else
    return 2;
  return 0;
}
