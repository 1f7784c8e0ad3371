/* Checkpoints of processes, as cuCheckpointProcess* make them. The content of device memory is in the process itself all
 * the time; what a checkpoint changes is who may use the device's memory meanwhile. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/engine/engine.h"

/* The process behind a pidfd, as this process sees it; 0: it has ended, or the descriptor is something else. */
static pid_t pid_of(int pidfd) {
  char path[64], line[128];
  int pid = 0;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "Pid: %d", &pid) == 1)
      break;
  if (file)
    fclose(file);
  return pid > 0 ? pid : 0;
}

static int find(const struct engine *engine, int pidfd, bool may_all, uid_t uid, struct process **out) {
  char path[32];
  struct stat about;
  pid_t pid = pidfd >= 0 ? pid_of(pidfd) : 0;
  snprintf(path, sizeof path, "/proc/%d", (int)pid);
  if (pid == 0 || stat(path, &about) != 0)
    return -ESRCH;
  if (!may_all && about.st_uid != uid)
    return -EPERM;
  for (struct process *process = engine->live; process; process = process->next)
    if (process->pid == pid) {
      *out = process;
      return 0;
    }
  return -ESRCH;
}

static void enter(const struct engine *engine, struct process *process, enum sim_state state) {
  process->state = state;
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++)
    if (process->share[i].lane)
      lane_lock(process->share[i].lane, state != SIM_RUNNING);
}

/* Calls that began before the lock, and the work that they and others have submitted. */
static bool works(const struct engine *engine, struct process *process) {
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++) {
    struct lane *lane = process->share[i].lane;
    if (lane && (__atomic_load_n(&lane->page->calls, __ATOMIC_SEQ_CST) > 0 ||
                 __atomic_load_n(&lane->page->pending, __ATOMIC_SEQ_CST) > 0 || lane_works(lane, engine_now())))
      return true;
  }
  return false;
}

static int save(struct engine *engine, struct process *process) {
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++) {
    struct sim_reply sums = {0};
    blocks_sums(process, i, &sums);
    if (sums.b > 0)
      return -EOPNOTSUPP;
  }
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++) {
    process->saved[i] = process->share[i].bytes;
    books_free(engine, process, i, process->saved[i]);
  }
  enter(engine, process, SIM_CHECKPOINTED);
  return 0;
}

static int restore(struct engine *engine, struct process *process) {
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++) {
    if (books_alloc(engine, process, i, process->saved[i]) == 0)
      continue;
    while (i-- > 0)
      books_free(engine, process, i, process->saved[i]);
    enter(engine, process, SIM_FAILED); /* for good, as the driver does */
    return -ENOMEM;
  }
  enter(engine, process, SIM_LOCKED);
  return 0;
}

static int act(struct engine *engine, struct process *process, uint64_t what) {
  static const enum sim_state from[] = {[SIM_CHECKPOINT_LOCK] = SIM_RUNNING,
                                        [SIM_CHECKPOINT_SAVE] = SIM_LOCKED,
                                        [SIM_CHECKPOINT_RESTORE] = SIM_CHECKPOINTED,
                                        [SIM_CHECKPOINT_UNLOCK] = SIM_LOCKED};
  bool busy = process->state == SIM_LOCKED && works(engine, process);
  if (what > SIM_CHECKPOINT_UNLOCK)
    return -EINVAL;
  if (what == SIM_CHECKPOINT_ASK)
    return busy ? -EBUSY : 0;
  if (process->state != from[what])
    return -EBADMSG;
  switch (what) {
    case SIM_CHECKPOINT_LOCK: enter(engine, process, SIM_LOCKED); return 0;
    case SIM_CHECKPOINT_SAVE: return busy ? -EBUSY : save(engine, process);
    case SIM_CHECKPOINT_RESTORE: return restore(engine, process);
    default: enter(engine, process, SIM_RUNNING); return 0;
  }
}

int checkpoint_request(struct engine *engine, const struct sim_request *request, int pidfd, bool may_all, uid_t uid,
                       struct sim_reply *reply) {
  struct process *process;
  int error = find(engine, pidfd, may_all, uid, &process);
  if (pidfd >= 0)
    close(pidfd);
  if (error)
    return error;
  error = act(engine, process, request->a);
  reply->a = process->state;
  return error;
}
