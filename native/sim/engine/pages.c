/* Pages that all clients share, and in which only they write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/engine/engine.h"

/* The descriptor in *kept, made at the first call; sealed, so that no client can truncate it under the others. */
static int page(int *kept, const char *name, size_t bytes) {
  if (*kept > 0)
    return *kept;
  int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0)
    return -errno;
  if (ftruncate(made, (off_t)bytes) < 0 || fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
    int error = -errno;
    close(made);
    return error;
  }
  return *kept = made;
}

int pages_meetings(void) {
  static int kept;
  return page(&kept, "gpushare-sim-meetings", SIM_MEETINGS * sizeof(struct sim_meeting));
}

int pages_links(uint32_t device) {
  static int kept[SIM_MAX_DEVICES];
  return page(&kept[device], "gpushare-sim-links", SIM_DIRECTIONS * sizeof(struct sim_direction));
}
