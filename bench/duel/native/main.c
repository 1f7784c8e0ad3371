/* duel --list | NAME: the evasions, one JSON object a line, or one of them. Prints {"event": "ready"} once it is set
 * up, and never ends by itself. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "duel.h"

enum { KERNELS = 64, HONEST_NS = MS, HONEST_BATCH = 4 };

struct duel duel;

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_ns(uint64_t ns) {
  nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

void must_at(CUresult code, const char *call) {
  if (code == CUDA_SUCCESS)
    return;
  printf("{\"event\": \"error\", \"call\": \"%.60s\", \"error\": %d}\n", call, (int)code);
  fflush(stdout);
  _exit(1);
}

void thread(void *(*run)(void *), void *argument) {
  pthread_t id;
  if (pthread_create(&id, NULL, run, argument) != 0)
    must_at(CUDA_ERROR_OUT_OF_MEMORY, "pthread_create");
  pthread_detach(id);
}

void grow_heap(void) {
  enum { BLOCKS = 20000, BYTES = 4096 };
  static void *block[BLOCKS];
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  for (int i = 0; i < BLOCKS; i++)
    block[i] = malloc(BYTES);
  for (int i = 0; i < BLOCKS; i++)
    free(block[i]);
}

uint64_t address_space(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%lu", &pages) != 1)
    must_at(CUDA_ERROR_OUT_OF_MEMORY, "statm");
  fclose(file);
  return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

const char *program(void) {
  static char text[16384];
  static const char kernel[] = ".visible .entry %s(.param .u64 %s_param_0)\n{\n\tret;\n}\n";
  char name[32] = "spin_ns";
  size_t used = (size_t)sprintf(text, ".version 7.0\n.target sm_52\n.address_size 64\n");
  for (int i = 0; i <= KERNELS; i++) {
    used += (size_t)sprintf(text + used, kernel, name, name);
    sprintf(name, "_Z7spin_ns%d", i);
  }
  sprintf(text + used, kernel, "count_conditional", "count_conditional");
  return text;
}

CUfunction spin_of(CUmodule module, const char *name) {
  CUfunction found;
  MUST(cuModuleGetFunction(&found, module, name));
  return found;
}

void start(int device) {
  CUdevice handle;
  CUmodule module;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&handle, device));
  MUST(cuDevicePrimaryCtxRetain(&duel.context, handle));
  MUST(cuCtxSetCurrent(duel.context));
  MUST(cuModuleLoadData(&module, program()));
  duel.spin = spin_of(module, "spin_ns");
}

void begin(void) {
  printf("{\"event\": \"ready\"}\n");
  fflush(stdout);
}

void spin_as(CUfunction function, CUstream stream, uint64_t ns) {
  void *arguments[] = {&ns};
  MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

void spin(CUstream stream, uint64_t ns) { spin_as(duel.spin, stream, ns); }

CUstream new_stream(void) {
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

void wait_all(void) { MUST(cuCtxSynchronize()); }

void flood(CUfunction function, CUstream stream, uint64_t ns, unsigned depth) {
  enum { DEPTH_MAX = 64 };
  CUevent done[DEPTH_MAX];
  depth = depth < DEPTH_MAX ? depth : DEPTH_MAX;
  for (unsigned i = 0; i < depth; i++)
    MUST(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
  for (unsigned long i = 0;; i++) {
    if (i >= depth)
      MUST(cuEventSynchronize(done[i % depth]));
    spin_as(function, stream, ns);
    MUST(cuEventRecord(done[i % depth], stream));
  }
}

/* The other side: always has 8 ms of work queued, or waits in a launch to queue it. */
static void honest(void) {
  CUstream stream = new_stream();
  begin();
  flood(duel.spin, stream, HONEST_NS, 2 * HONEST_BATCH);
}

const struct evasion own_evasions[] = {
    {.name = "honest", .about = "none: kernels of 1 ms in one stream", .run = honest},
    {0},
};

static const struct {
  const char *kind;
  const struct evasion *evasions;
} kinds[] = {
    {"control", own_evasions},       {"uneven", uneven_evasions},      {"streams", stream_evasions},
    {"captures", capture_evasions},  {"graphs", graph_evasions},       {"callbacks", callback_evasions},
    {"order", order_evasions},       {"functions", function_evasions}, {"copies", copy_evasions},
    {"processes", process_evasions}, {"grants", grant_evasions},       {"guest", guest_evasions},
    {"memory", memory_evasions},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void list(void) {
  for (int k = 0; k < KINDS; k++)
    for (const struct evasion *e = kinds[k].evasions; e->name; e++)
      printf(
          "{\"name\": \"%s\", \"kind\": \"%s\", \"about\": \"%s\", \"devices\": %d, \"grants\": %d, \"open\": \"%s\", "
          "\"options\": \"%s\", \"seconds\": %d, \"found\": %s}\n",
          e->name, kinds[k].kind, e->about, e->devices ? e->devices : 1, e->grants ? e->grants : 1,
          e->open ? e->open : "", e->options ? e->options : "", e->seconds, e->found ? "true" : "false");
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  /* the honest tenant of a further device */
  int device = argc > 2 ? atoi(argv[2]) : 0;
  if (strcmp(name, "--list") == 0) {
    list();
    return 0;
  }
  for (int k = 0; k < KINDS; k++)
    for (const struct evasion *e = kinds[k].evasions; e->name; e++)
      if (strcmp(e->name, name) == 0) {
        if (!e->bare)
          start(device);
        e->run();
        return 1;
      }
  fprintf(stderr, "usage: duel --list | NAME [DEVICE]\n");
  return 2;
}
