/* A second preloaded library: it wraps malloc, free and dlsym, as profilers and allocators do, and counts calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *dlvsym(void *handle, const char *name, const char *version);
extern void *__libc_malloc(size_t bytes);
extern void __libc_free(void *at);

static unsigned long allocations, lookups;

void *malloc(size_t bytes) {
  __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
  return __libc_malloc(bytes);
}

void free(void *at) { __libc_free(at); }

void *dlsym(void *handle, const char *name) {
  static void *(*next)(void *, const char *);
  if (!next)
    *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  __atomic_add_fetch(&lookups, 1, __ATOMIC_RELAXED);
  return next(handle, name);
}

__attribute__((destructor)) static void report(void) {
  const char *file = getenv("SECOND_PRELOAD_COUNTS");
  FILE *out = file ? fopen(file, "w") : NULL;
  if (out) {
    fprintf(out, "%lu %lu\n", allocations, lookups);
    fclose(out);
  }
}
