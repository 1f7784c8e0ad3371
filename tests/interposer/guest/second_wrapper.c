/* A second preloaded library: it wraps functions of the driver, as tracers and checkers do, calls the next definition,
 * and prints how often each was called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long allocations, launches, lost;

int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
  int (*next)(uint64_t *, size_t);
  *(void **)&next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  __atomic_add_fetch(next ? &allocations : &lost, 1, __ATOMIC_RELAXED);
  return next ? next(at, bytes) : 999;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  int (*next)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  *(void **)&next = dlsym(RTLD_NEXT, "cuLaunchKernel");
  __atomic_add_fetch(next ? &launches : &lost, 1, __ATOMIC_RELAXED);
  return next ? next(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra) : 999;
}

__attribute__((destructor)) static void report(void) {
  const char *file = getenv("SECOND_PRELOAD_COUNTS");
  FILE *out = file ? fopen(file, "w") : NULL;
  if (out) {
    fprintf(out, "%lu %lu %lu\n", allocations, launches, lost);
    fclose(out);
  }
}
