/* Preload library: shifts the wall clock by the nanoseconds in the file $WALLCLOCK, for this process and children. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *off;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int file = open(getenv("WALLCLOCK"), O_RDONLY | O_CLOEXEC);
  void *page = mmap(NULL, sizeof *off, PROT_READ, MAP_SHARED, file, 0);
  if (file < 0 || page == MAP_FAILED)
    abort();
  off = page;
}

int clock_gettime(clockid_t clock, struct timespec *now);
int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = real(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME && off) {
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *off;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
  }
  return result;
}
