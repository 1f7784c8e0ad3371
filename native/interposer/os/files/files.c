#include "interposer/os/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "interposer/os/guest.h"

static const char WHAT_TO_DO[] =
    "it may open no, or too few, further files; raise its limit (ulimit -n, RLIMIT_NOFILE)";

static unsigned long limit(void) {
  struct rlimit files;
  return getrlimit(RLIMIT_NOFILE, &files) == 0 ? (unsigned long)files.rlim_cur : 0;
}

int gs_files_fail(struct gs_err *err) { return gs_fail(err, -EMFILE, "%s, now %lu", WHAT_TO_DO, limit()); }

/* A driver that failed has already closed the files that it had opened, so this tries to open more than one. */
bool gs_files_short(void) {
  enum { WANTED = 16 }; /* a context takes about this many */
  int opened[WANTED], count = 0, saved = errno;
  bool none = false; /* for whatever reason: there is a system-wide limit, too */
  while (count < WANTED && !none) {
    opened[count] = open("/", O_PATH | O_CLOEXEC);
    none = opened[count] < 0;
    count += !none;
  }
  while (count > 0)
    close(opened[--count]);
  errno = saved;
  return none;
}

void gs_files_mention(const char *call, CUresult result) {
  static uint32_t warned;
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && gs_files_short() &&
      __atomic_exchange_n(&warned, 1, __ATOMIC_RELAXED) == 0)
    gs_say("the driver fails in this process (%s answers %d): %s, now %lu", call, (int)result, WHAT_TO_DO, limit());
}
