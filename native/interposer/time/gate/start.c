#include "interposer/time/gate/start.h"

#include <errno.h>

#include "interposer/time/create.h"
#include "interposer/time/gate/gate_thread.h"

void gs_time_start(int ordinal) {
  int saved = errno;
  if (gs_time_create(ordinal))
    gs_gate_thread_start();
  errno = saved;
}
