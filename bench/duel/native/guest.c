/* What a program can do to a library in its own process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "duel.h"
#include "page/gs_page.h"

/* Says that a profiler is loaded, so that no marks are recorded; then few and deep batches. */
static void injected(void) {
  if (!getenv("CUDA_INJECTION64_PATH")) {
    char *words[] = {(char *)"duel", (char *)"injected", NULL};
    setenv("CUDA_INJECTION64_PATH", "/nonexistent", 1);
    execv("/proc/self/exe", words);
  }
  start(0);
  CUstream stream = new_stream();
  begin();
  for (;;) {
    for (int i = 0; i < 40; i++)
      spin(stream, 10 * MS);
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
      sleep_ns(MS);
  }
}

/* The address space may not grow any more: whoever needs memory for a stream gets none. The heap is grown before. */
static void no_memory(void) {
  grow_heap();
  spin(NULL, US);
  wait_all();
  struct rlimit limit = {address_space(), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
  begin();
  for (;;) {
    CUstream stream[32];
    for (int i = 0; i < 32; i++) {
      stream[i] = new_stream();
      spin(stream[i], 5 * MS);
    }
    for (int i = 0; i < 32; i++) {
      MUST(cuStreamSynchronize(stream[i]));
      if (i % 2)
        MUST(cuStreamDestroy_v2(stream[i]));
    }
  }
}

static pthread_t victim;

static void hold_still(int signal) {
  (void)signal;
  sleep_ns(300 * (uint64_t)MS);
}

static void *short_work(void *unused) {
  MUST(cuCtxSetCurrent(duel.context));
  CUstream stream = new_stream();
  for (;;) {
    for (int i = 0; i < 20; i++)
      spin(stream, 20 * US);
    MUST(cuStreamSynchronize(stream));
  }
  return unused;
}

static void *stop_it(void *unused) {
  for (;;) {
    pthread_kill(victim, SIGUSR1);
    sleep_ns(310 * (uint64_t)MS);
  }
  return unused;
}

/* A thread is stopped by a signal wherever it happens to be, as collectors of garbage do; another submits meanwhile. */
static void signalled(void) {
  signal(SIGUSR1, hold_still);
  if (pthread_create(&victim, NULL, short_work, NULL) != 0)
    must_at(CUDA_ERROR_OUT_OF_MEMORY, "pthread_create");
  thread(stop_it, NULL);
  begin();
  flood(duel.spin, new_stream(), 10 * MS, 8);
}

/* Where the grant has the driver itself: root's commands have it in a mount namespace of their own. */
static void driver_directory(char *path, size_t size) {
  static const char own[] = "/run/gpushare/own/driver";
  const char *grant = getenv("GPUSHARE_GRANT_DIR");
  if (access(own, F_OK) == 0)
    snprintf(path, size, "%s", own);
  else
    snprintf(path, size, "%s/driver", grant ? grant : "");
}

/* The driver itself, past the interposer: the preload is dropped, the driver is taken from where the grant has it. */
static void other_path(void) {
  char path[512], *words[] = {(char *)"duel", (char *)"other-path", NULL};
  if (getenv("LD_PRELOAD")) {
    driver_directory(path, sizeof path);
    setenv("LD_LIBRARY_PATH", path, 1);
    unsetenv("LD_PRELOAD");
    execv("/proc/self/exe", words);
  }
  start(0);
  begin();
  flood(duel.spin, new_stream(), 10 * MS, 8);
}

static void *its(void *driver, const char *name) {
  void *found = driver ? dlsym(driver, name) : NULL;
  if (!found)
    must_at(CUDA_ERROR_NOT_FOUND, name);
  return found;
}

#define ITS(name) ((__typeof__(&name))its(driver, #name))

/* Joins and launches a little, as any program does; its work goes to the driver's own functions, which nothing meters.
 * The driver is opened by its path as a copy of it would be, and not as a copy: the simulated device serves one for each
 * process. */
static void joined_past(void) {
  enum { DEPTH = 8 };
  char path[480], file[512];
  CUmodule module;
  CUfunction function;
  CUstream stream;
  CUevent done[DEPTH];
  uint64_t ns = 10 * MS;
  void *arguments[] = {&ns};
  spin(NULL, US);
  wait_all();
  driver_directory(path, sizeof path);
  snprintf(file, sizeof file, "%s/libcuda.so.1", path);
  void *driver = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  MUST(ITS(cuModuleLoadData)(&module, program()));
  MUST(ITS(cuModuleGetFunction)(&function, module, "spin_ns"));
  MUST(ITS(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < DEPTH; i++)
    MUST(ITS(cuEventCreate)(&done[i], CU_EVENT_DISABLE_TIMING));
  begin();
  for (unsigned long i = 0;; i++) {
    if (i >= DEPTH)
      MUST(ITS(cuEventSynchronize)(done[i % DEPTH]));
    MUST(ITS(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    MUST(ITS(cuEventRecord)(done[i % DEPTH], stream));
  }
}

static struct gs_usage *usage_page(void) {
  char line[512];
  void *at = NULL;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, "/usage"))
      sscanf(line, "%p", &at);
  if (!at)
    must_at(CUDA_ERROR_NOT_FOUND, "the usage page");
  return at;
}

static void *lies(void *page) {
  struct gs_usage *usage = page;
  for (;;) {
    for (uint32_t i = 0; i < 4; i++) {
      struct gs_slot_device *device = &usage->slot[i].device[0];
      __atomic_store_n(&device->busy_ns, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&device->launches, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&device->inflight, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&device->queue_end_ns, 0, __ATOMIC_RELAXED);
    }
    sleep_ns(20 * US);
  }
  return NULL;
}

/* Writes into the page what it likes. */
static void forged(void) {
  thread(lies, usage_page());
  begin();
  flood(duel.spin, new_stream(), 10 * MS, 8);
}

#define GUEST "the interposer is a guest in the tenant's process"

const struct evasion guest_evasions[] = {
    {.name = "injected",
     .about = "CUDA_INJECTION64_PATH is set: no marks; batches of 400 ms",
     .run = injected,
     .seconds = 10,
     .bare = true},
    {.name = "no-memory", .about = "RLIMIT_AS leaves no memory for the books of streams", .run = no_memory},
    {.name = "signalled", .about = "a thread is held in signal handlers wherever it is", .run = signalled},
    {.name = "other-path",
     .about = "the preload is dropped, the driver opened where it is",
     .run = other_path,
     .bare = true},
    {.name = "joined-past",
     .about = "joins, then works by the driver's own functions, which nothing meters",
     .run = joined_past,
     .seconds = 10,
     .found = true},
    {.name = "forged", .about = "the usage page shows nothing as done", .run = forged, .open = GUEST},
    {0},
};
