/* The connection over which this process gets its slot. */
#include "interposer/process/join.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "interposer/process/connection.h"
#include "interposer/process/device.h"
#include "interposer/driver/driver.h"
#include "interposer/os/files/files.h"
#include "interposer/os/files/grant.h"
#include "interposer/os/system.h"
#include "interposer/os/files/pages.h"
#include "interposer/process/passage/passage.h"
#include "interposer/process/trace.h"

enum {
  CROWD_MS = 60000, /* a busy daemon answers within this time */
  RETRY_MS = 50,
  THERE_NS = 1000000000, /* an attempt that took this long had a daemon until it failed */
  FD_FLOOR = 960         /* keeps the descriptors above the numbers that programs expect to get */
};

static const uint64_t PATIENCE_NS = 5000000000; /* a daemon that restarts is back within this time */
static const uint64_t CROWD_NS = UINT64_C(1000000) * CROWD_MS;

/* Identity of the descriptors: a program may close every descriptor it finds and open others with the same numbers. */
struct identity {
  dev_t device;
  ino_t inode;
};
static struct identity bell_is, socket_is;
static int bell_number = -1, socket_number = -1; /* also for a forked child, for which the process's state is wiped */

static bool identify(int fd, struct identity *out) {
  struct stat file;
  if (fd < 0 || gs_fstat(fd, &file) < 0)
    return false;
  /* gs_ring reads while gs_rejoin writes: a thread that sees half of the change does not ring now, but again after its
   * next check */
  __atomic_store_n(&out->device, file.st_dev, __ATOMIC_RELAXED);
  __atomic_store_n(&out->inode, file.st_ino, __ATOMIC_RELAXED);
  return true;
}

static bool still(int fd, const struct identity *is) {
  struct identity now;
  return identify(fd, &now) && now.device == __atomic_load_n(&is->device, __ATOMIC_RELAXED) &&
         now.inode == __atomic_load_n(&is->inode, __ATOMIC_RELAXED);
}

/* The function behind glibc's pthread_atfork. musl, whose programs may load this library too, does not have it: there a
 * child keeps its copies until it calls exec, ends, or joins. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library)
    __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

/* The daemon takes the end of the connection to mean that this program image has ended, so a child must not keep it
 * open beyond an exec of its parent. A child of a raw clone does keep it: then the slot is freed when both have
 * ended. */
static void in_child(void) {
  int saved = errno;
  if (still(socket_number, &socket_is))
    close(socket_number);
  if (still(bell_number, &bell_is))
    close(bell_number);
  errno = saved;
}

static void remember(int connection, int bell) {
  static uint32_t registered;
  socket_number = connection;
  bell_number = bell;
  identify(connection, &socket_is);
  identify(bell, &bell_is);
  if (__register_atfork && __atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED) == 0)
    __register_atfork(NULL, NULL, in_child, __dso_handle);
}

static int keep_high(int fd) {
  struct rlimit limit;
  int floor =
      getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FD_FLOOR + 32 ? (int)limit.rlim_cur / 2 : FD_FLOOR;
  int high = fcntl(fd, F_DUPFD_CLOEXEC, floor);
  if (high < 0)
    return fd;
  close(fd);
  return high;
}

/* Whether another attempt may help. A refusal is final, and who did not answer for so long will not; an absent or ending
 * daemon may come back. */
static bool may_help(int rc) { return rc != -EPERM && rc != -EPROTO && rc != -EACCES && rc != -EAGAIN; }

static int no_slot(struct gs_err *err) {
  return gs_fail(err, -EPROTO, "the gpushare daemon's answer has no usable slot or descriptor");
}

/* Repeats an attempt while that may help. One attempt outlasts a crowd: a process that asked anew would take another
 * place at the end of the queue, and its first one, for a moment, a slot that others are refused. */
static int insist(const char *dir, uint32_t magic, struct gs_join_reply *reply, int *fd, int *given,
                  struct gs_err *err) {
  struct gs_join_request request = {magic, GS_WIRE_VERSION, GS_NO_SLOT, 0};
  uint64_t began = gs_now(), gone = began; /* since when the daemon is absent */
  int rc;
  for (;;) {
    uint64_t asked = gs_now();
    rc = gs_daemon_ask(dir, &request, sizeof request, CROWD_MS, reply, fd, given, err);
    uint64_t now = gs_now();
    if (now - asked >= THERE_NS)
      gone = now;
    if (rc == 0 || !may_help(rc) || now - gone >= PATIENCE_NS || now - began >= CROWD_NS)
      break;
    struct timespec nap = {0, RETRY_MS * 1000000L};
    nanosleep(&nap, NULL);
  }
  if (rc == 0 && (*given < 0 || (magic == GS_JOIN_MAGIC && reply->slot >= GS_MAX_SLOTS))) {
    close(*fd);
    if (*given >= 0)
      close(*given);
    rc = no_slot(err);
  }
  return rc;
}

/* Maps the pages. A sandbox may have them where nothing can be opened for writing, or the process may have become
 * another user: then the daemon, which knows its processes by their cgroup, passes the page. */
static int map_pages(const char *dir, struct gs_pages *pages, struct gs_err *err) {
  int rc = gs_pages_map(dir, -1, pages, err);
  if (rc != -EROFS && rc != -EACCES)
    return rc;
  struct gs_join_reply reply;
  int fd, page;
  rc = insist(dir, GS_PASS_MAGIC, &reply, &fd, &page, err);
  if (rc < 0)
    return rc;
  close(fd);
  rc = gs_pages_map(dir, page, pages, err);
  close(page);
  return rc;
}

static uint32_t join_grant(struct gs_process *state, const char *dir, struct gs_err *err) {
  struct gs_pages pages;
  struct gs_join_reply reply;
  int fd, bell;
  if (map_pages(dir, &pages, err) < 0 || insist(dir, GS_JOIN_MAGIC, &reply, &fd, &bell, err) < 0)
    return GS_JOIN_FAILED;
  state->limits = pages.limits;
  state->usage = pages.usage;
  state->ndevices = pages.limits->ndevices;
  state->slot_index = reply.slot;
  state->slot = &pages.usage->slot[reply.slot];
  __atomic_store_n(&state->slot->pid_namespace, gs_pid_namespace(), __ATOMIC_RELAXED);
  __atomic_store_n(&state->slot->own_pid, (int32_t)getpid(), __ATOMIC_RELEASE);
  state->generation = reply.generation;
  state->host_pid = reply.host_pid;
  state->daemon_epoch = __atomic_load_n(&pages.limits->daemon_epoch, __ATOMIC_ACQUIRE);
  state->socket = keep_high(fd);
  state->bell = keep_high(bell);
  remember(state->socket, state->bell);
  for (uint32_t i = 0; i < GS_MAX_DEVICES; i++) {
    state->ordinal_of[i] = GS_DEVICE_UNKNOWN;
    state->total_bytes[i] = __atomic_load_n(&pages.limits->device[i].memory_bytes, __ATOMIC_ACQUIRE);
  }
  return gs_passage_start() ? GS_JOINED : GS_JOIN_FAILED;
}

uint32_t gs_join(struct gs_process *state) {
  const char *dir = gs_grant_dir();
  if (!dir)
    return GS_JOIN_BARE;
  struct gs_err err = {0};
  uint32_t joined = GS_JOIN_FAILED;
  gs_clock_find();
  gs_stderr_find();
  if (gs_grant_check(&err) == 0) {
    if (gs_driver_present())
      joined = join_grant(state, dir, &err);
    else
      gs_driver_why(&err);
  }
  if (joined == GS_JOIN_FAILED && gs_files_short())
    gs_files_fail(&err);
  if (joined == GS_JOIN_FAILED)
    gs_say("this process gets no GPU: %s", err.msg);
  return joined;
}

/* Moves a new descriptor to the number of the old one, unless the program has taken that number. */
static int replace(int old, const struct identity *is, int fresh) {
  int number = old >= 0 && still(old, is) && dup3(fresh, old, O_CLOEXEC) == old ? old : -1;
  if (number < 0)
    number = keep_high(fresh);
  else
    close(fresh);
  return number;
}

int gs_rejoin(struct gs_err *err) {
  struct gs_process *state = gs_process;
  int saved = errno;
  struct gs_join_reply reply;
  int fd, bell;
  uint32_t epoch = __atomic_load_n(&state->limits->daemon_epoch, __ATOMIC_ACQUIRE);
  struct gs_join_request request = {GS_JOIN_MAGIC, GS_WIRE_VERSION, state->slot_index, state->generation};
  int rc = gs_daemon_ask(gs_grant_dir(), &request, sizeof request, GS_ANSWER_MS, &reply, &fd, &bell, err);
  if (rc == 0 && bell < 0) {
    close(fd);
    rc = no_slot(err);
  }
  if (rc == 0 && (reply.slot != state->slot_index || reply.generation != state->generation)) {
    close(fd);
    close(bell);
    rc =
        gs_fail(err, -ESTALE, "the gpushare daemon gave slot %u, this process holds %u", reply.slot, state->slot_index);
  }
  if (rc == 0) {
    int connection = replace(state->socket, &socket_is, fd), number = replace(state->bell, &bell_is, bell);
    remember(connection, number);
    __atomic_store_n(&state->socket, connection, __ATOMIC_RELEASE);
    __atomic_store_n(&state->bell, number, __ATOMIC_RELEASE);
    __atomic_store_n(&state->daemon_epoch, epoch, __ATOMIC_RELEASE);
    gs_trace(GS_TRACE_REJOINED, GS_NO_DEVICE, epoch, state->slot_index);
  }
  errno = saved;
  return rc;
}

void gs_ring(void) {
  int saved = errno;
  int bell = __atomic_load_n(&gs_process->bell, __ATOMIC_ACQUIRE);
  uint64_t one = 1;
  if (still(bell, &bell_is)) {
    long written = syscall(SYS_write, bell, &one, sizeof one); /* not a cancellation point, see gs_nap */
    (void)written;                                             /* a full counter has rung already */
  }
  errno = saved;
}
