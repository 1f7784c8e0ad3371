/* A process that tries what a wall has to refuse: gpushare-probe [FILE ...]
 *
 * It writes itself to each FILE, a cgroup's cgroup.procs, and prints `in`. Then it reads commands from stdin, one per
 * line, and answers each with one line of numbers:
 *
 * ping                      0
 * open PATH                 opens the file for reading and writing, and closes it: errno, or 0
 * fork                      leaves a child in a session of its own, which sleeps until it is killed: its pid
 * memory LIBRARY MIB MIB    with LIBRARY, a CUDA driver, allocates and frees the first number of MiB on device 0, then
 *                           the second: both CUresults. If an earlier step fails: its CUresult twice, negated
 *
 * It ends at the end of stdin, or with the thread that started it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "api/gs_cuda.h"

enum { LINE_MAX_BYTES = 8192 };

struct driver {
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext *, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*alloc)(CUdeviceptr *, size_t);
  CUresult (*free)(CUdeviceptr);
};

static void say(long number) {
  printf("%ld\n", number);
  fflush(stdout);
}

static int enter(const char *procs) {
  int fd = open(procs, O_WRONLY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  int error = write(fd, "0", 1) == 1 ? 0 : errno;
  close(fd);
  return error;
}

static long try_open(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0)
    return errno;
  close(fd);
  return 0;
}

static long leave_child(void) {
  pid_t pid = fork();
  if (pid != 0)
    return pid;
  setsid();
  close(STDIN_FILENO); /* stdout stays open: its reader sees the end only when the last process has closed it */
  for (;;)
    pause();
}

static bool find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  return found != NULL;
}

/* Answers if a step before the first allocation failed. */
static void failed(int code) { printf("%d %d\n", -code, -code); }

static int take(const struct driver *driver, unsigned long mib) {
  CUdeviceptr memory;
  CUresult code = driver->alloc(&memory, mib << 20);
  if (code == CUDA_SUCCESS)
    driver->free(memory);
  return (int)code;
}

static void try_memory(const char *path, unsigned long first, unsigned long second) {
  struct driver driver;
  CUcontext context;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL || !find(library, "cuInit", &driver.init) ||
      !find(library, "cuDevicePrimaryCtxRetain", &driver.retain) ||
      !find(library, "cuCtxSetCurrent", &driver.set_current) || !find(library, "cuMemAlloc_v2", &driver.alloc) ||
      !find(library, "cuMemFree_v2", &driver.free))
    return failed(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED);
  CUresult code = driver.init(0);
  if (code == CUDA_SUCCESS)
    code = driver.retain(&context, 0);
  if (code == CUDA_SUCCESS)
    code = driver.set_current(context);
  if (code != CUDA_SUCCESS)
    return failed((int)code);
  int small = take(&driver, first);
  printf("%d %d\n", small, take(&driver, second));
}

int main(int argc, char **argv) {
  char line[LINE_MAX_BYTES], path[LINE_MAX_BYTES];
  unsigned long first, second;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 1; i < argc; i++) {
    int error = enter(argv[i]);
    if (error) {
      printf("%s: %s\n", argv[i], strerror(error));
      return 1;
    }
  }
  puts("in");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "open ", 5) == 0) {
      say(try_open(line + 5));
    } else if (strcmp(line, "fork") == 0) {
      say(leave_child());
    } else if (sscanf(line, "memory %8191s %lu %lu", path, &first, &second) == 3) {
      try_memory(path, first, second);
      fflush(stdout);
    } else {
      say(0);
    }
  }
  return 0;
}
