/* Preload library: libc's clocks and sleeps run $FALSECLOCK times as fast, as with libfaketime. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static double speed = 1;
static int (*real)(clockid_t, struct timespec *);
static int (*real_sleep)(clockid_t, int, const struct timespec *, struct timespec *);

__attribute__((constructor)) static void start(void) {
  const char *text = getenv("FALSECLOCK");
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  real_sleep = (int (*)(clockid_t, int, const struct timespec *, struct timespec *))dlsym(RTLD_NEXT, "clock_nanosleep");
  speed = text ? atof(text) : 1;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = real(clock, now);
  if (result == 0) {
    double ns = ((double)now->tv_sec * 1e9 + (double)now->tv_nsec) * speed;
    now->tv_sec = (time_t)(ns / 1e9);
    now->tv_nsec = (long)(ns - (double)now->tv_sec * 1e9);
  }
  return result;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
  double ns = ((double)time->tv_sec * 1e9 + (double)time->tv_nsec) / speed;
  struct timespec scaled = {(time_t)(ns / 1e9), 0};
  scaled.tv_nsec = (long)(ns - (double)scaled.tv_sec * 1e9);
  return real_sleep(clock, flags, &scaled, left);
}
