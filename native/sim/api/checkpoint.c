/* Checkpoints of this or another process (engine/checkpoint.c). A process is named by its own id, never by that of one of
 * its threads. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "page/gs_clock.h"
#include "sim/api/holds.h"
#include "sim/memory/memory.h"
#include "sim_api.h"

enum { FIRST_DRIVER = 570, POLL_NS = 500000, MOST_NS = 100000000 };

void sim_await_unlock(const struct sim_lane *gate) {
  struct timespec most = {0, MOST_NS}; /* the engine may end meanwhile */
  syscall(SYS_futex, &gate->locked, FUTEX_WAIT, 1, &most, NULL, 0);
}

static CUresult result_of(int error) {
  switch (error) {
    case 0: return CUDA_SUCCESS;
    case -EPERM: return CUDA_ERROR_NOT_PERMITTED;
    case -ESRCH: return CUDA_ERROR_NOT_INITIALIZED; /* it has not initialised the driver */
    case -EBADMSG:
    case -EBUSY: return CUDA_ERROR_ILLEGAL_STATE;
    case -EOPNOTSUPP: return CUDA_ERROR_NOT_SUPPORTED;
    case -ENOMEM: return CUDA_ERROR_OPERATING_SYSTEM; /* what the driver returns where a device is full */
    default: return CUDA_ERROR_UNKNOWN;
  }
}

/* 0 or a negative errno (sim_proto.h); -EINVAL: no such process. */
static int ask(int pid, enum sim_checkpoint what, enum sim_state *state) {
  struct sim_reply reply = {0};
  int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (pidfd < 0)
    return -EINVAL;
  int error = sim_exchange(SIM_CHECKPOINT, 0, what, 0, pidfd, &reply, NULL);
  close(pidfd);
  if (state)
    *state = (enum sim_state)reply.a;
  return error;
}

static CUresult may(int pid) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (sim_info()->driver < FIRST_DRIVER)
    return CUDA_ERROR_NOT_SUPPORTED;
  return pid > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult act(int pid, enum sim_checkpoint what) {
  CUresult result = may(pid);
  if (result)
    return result;
  int error = ask(pid, what, NULL);
  return error == -EINVAL ? CUDA_ERROR_INVALID_VALUE : result_of(error);
}

/* A process that still has work is not locked yet. */
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
  enum sim_state found;
  CUresult result = may(pid);
  if (result)
    return result;
  if (state == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  int error = ask(pid, SIM_CHECKPOINT_ASK, &found);
  if (error && error != -EBUSY)
    return error == -EINVAL ? CUDA_ERROR_INVALID_VALUE : result_of(error);
  *state = (CUprocessState)(error ? SIM_RUNNING : found);
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  static const CUcheckpointLockArgs none;
  if (args && (args->reserved0 || memcmp(args->reserved1, none.reserved1, sizeof none.reserved1) != 0))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = act(pid, SIM_CHECKPOINT_LOCK);
  uint64_t now = gs_clock_own(), end = args && args->timeoutMs ? now + args->timeoutMs * UINT64_C(1000000) : UINT64_MAX;
  int error = 0;
  while (result == CUDA_SUCCESS && (error = ask(pid, SIM_CHECKPOINT_ASK, NULL)) == -EBUSY) {
    now = gs_clock_own();
    if (now >= end) {
      ask(pid, SIM_CHECKPOINT_UNLOCK, NULL);
      return CUDA_ERROR_NOT_READY;
    }
    gs_clock_sleep(now + POLL_NS);
  }
  return result ? result : result_of(error);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  (void)args;
  return act(pid, SIM_CHECKPOINT_SAVE);
}

/* Onto the same devices only. */
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  for (unsigned i = 0; args && i < args->gpuPairsCount; i++) {
    if (args->gpuPairs == NULL)
      return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(&args->gpuPairs[i].oldUuid, &args->gpuPairs[i].newUuid, sizeof args->gpuPairs[i].oldUuid) != 0)
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return act(pid, SIM_CHECKPOINT_RESTORE);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  (void)args;
  return act(pid, SIM_CHECKPOINT_UNLOCK);
}
