/* Requests that come with a descriptor, or are answered with one that stays open: files for IPC, and blocks. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/engine/engine.h"

/* Only regular files are kept: a process could otherwise pass its own connection, which would then never close. */
static bool regular(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

int request_put_file(struct process *process, const struct sim_request *request, int given) {
  enum shared_file which = request->op == SIM_EVENTS_PUT ? SHARED_EVENTS : SHARED_MEMORY;
  const uint64_t secret[2] = {request->a, request->b};
  if (process && given >= 0 && regular(given))
    return books_file_put(process, request->device, which, secret, given);
  if (given >= 0)
    close(given);
  return process ? -EINVAL : -EPERM;
}

int request_block(struct engine *engine, struct process *process, const struct sim_request *request, int given,
                  struct sim_reply *reply, int *shown, int *made) {
  int error = process ? -EINVAL : -EPERM;
  switch (process ? request->op : 0) {
    case SIM_BLOCK_MAKE:
      if (given < 0 || regular(given)) {
        error = block_make(engine, process, request, given, reply);
        given = error ? given : -1;
      }
      break;
    case SIM_BLOCK_HOLD: error = block_hold(engine, process, request->a, request->b); break;
    case SIM_BLOCK_DROP: error = block_drop(engine, process, request->a, &reply->a); break;
    case SIM_BLOCK_EXPORT: error = *made = block_export(process, request->a); break;
    case SIM_BLOCK_IMPORT:
      if (given >= 0)
        error = *shown = block_import(engine, process, given, reply);
      break;
    case SIM_BLOCK_SUMS:
      blocks_sums(process, request->device, reply);
      error = 0;
      break;
    default: break;
  }
  if (given >= 0)
    close(given);
  return error < 0 ? error : 0;
}
