/* The connection over which this process gets its slot. */
#include "interposer/process/join.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "interposer/process/device.h"
#include "interposer/driver/driver.h"
#include "interposer/os/files/files.h"
#include "interposer/os/files/grant.h"
#include "page/gs_wire.h"
#include "interposer/os/system.h"
#include "interposer/os/files/pages.h"
#include "interposer/process/trace.h"

enum {
  PATIENCE_MS = 5000, /* a daemon that restarts is back within this time */
  CROWD_MS = 60000,   /* a busy daemon answers within this time */
  RETRY_MS = 50,
  ANSWER_MS = 2000,
  FD_FLOOR = 960 /* keeps the descriptors above the numbers that programs expect to get */
};

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

static int connect_to_daemon(const char *dir, struct gs_err *err) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int at = -1;
  /* the path of a socket is at most 107 bytes; a longer one is reached through its directory's descriptor */
  if (snprintf(address.sun_path, sizeof address.sun_path, "%s/grant.sock", dir) >= (int)sizeof address.sun_path) {
    at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
      return gs_fail(err, -errno, "cannot open %.100s: %s", dir, strerror(errno));
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/grant.sock", at);
  }
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  int rc = fd < 0 ? -errno : 0;
  struct timeval timeout = {ANSWER_MS / 1000, 0};
  if (rc == 0 && (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) < 0 ||
                  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) < 0 ||
                  connect(fd, (struct sockaddr *)&address, sizeof address) < 0))
    rc = -errno;
  if (at >= 0)
    close(at);
  if (rc == 0)
    return fd;
  if (fd >= 0)
    close(fd);
  if (rc == -EMFILE)
    return gs_files_fail(err);
  return gs_fail(err, rc, "cannot reach the gpushare daemon at %.100s/grant.sock: %s", dir, strerror(-rc));
}

/* Sends one request and reads one answer. *given: the descriptor received, -1 if there was none. */
static int ask(int fd, struct gs_join_request request, struct gs_join_reply *reply, int *given, struct gs_err *err) {
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec body = {reply, sizeof *reply};
  /* CMSG_LEN, not CMSG_SPACE: the padding has room for a second descriptor, which would never be closed */
  struct msghdr message = {
      .msg_iov = &body, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
  *given = -1;
  ssize_t got = send(fd, &request, sizeof request, MSG_NOSIGNAL);
  if (got == (ssize_t)sizeof request)
    do
      got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
  if (got < 0)
    return gs_fail(err, -errno, "the gpushare daemon did not answer: %s", strerror(errno));
  struct cmsghdr *part = CMSG_FIRSTHDR(&message); /* even an empty message may carry one */
  if (part && part->cmsg_type == SCM_RIGHTS && part->cmsg_len >= CMSG_LEN(sizeof(int)))
    memcpy(given, CMSG_DATA(part), sizeof *given);
  if (got == 0)
    return gs_fail(err, -ECONNRESET, "the gpushare daemon closed the connection");
  if (got != (ssize_t)sizeof *reply || reply->magic != GS_JOIN_MAGIC || reply->version != GS_WIRE_VERSION)
    return gs_fail(err, -EPROTO, "what answers at grant.sock is not a gpushare daemon of this version");
  reply->message[sizeof reply->message - 1] = 0;
  if (message.msg_flags & MSG_CTRUNC && *given < 0)
    return gs_files_fail(err);
  if (reply->error != GS_JOIN_OK)
    return gs_fail(err, -EPERM, "the gpushare daemon refused this process: %s",
                   reply->message[0] ? reply->message : "no reason given");
  if (*given < 0 || message.msg_flags & MSG_CTRUNC || (request.magic == GS_JOIN_MAGIC && reply->slot >= GS_MAX_SLOTS))
    return gs_fail(err, -EPROTO, "the gpushare daemon's answer has no usable slot or descriptor");
  return 0;
}

/* One complete attempt; on success *fd and *given are open. */
static int try_ask(const char *dir, struct gs_join_request request, struct gs_join_reply *reply, int *fd, int *given,
                   struct gs_err *err) {
  *given = -1;
  *fd = connect_to_daemon(dir, err);
  if (*fd < 0)
    return *fd;
  int rc = ask(*fd, request, reply, given, err);
  if (rc < 0) {
    close(*fd);
    if (*given >= 0)
      close(*given);
  }
  return rc;
}

/* How long to retry: a refusal is final, an absent or ending daemon may come back, and one that did not answer in time
 * is busy with other processes. */
static uint64_t patience_ns(int rc) {
  if (rc == -EPERM || rc == -EPROTO || rc == -EACCES)
    return 0;
  return (rc == -EAGAIN ? CROWD_MS : PATIENCE_MS) * UINT64_C(1000000);
}

/* Repeats an attempt while that may help. */
static int insist(const char *dir, uint32_t magic, struct gs_join_reply *reply, int *fd, int *given,
                  struct gs_err *err) {
  struct gs_join_request request = {magic, GS_WIRE_VERSION, GS_NO_SLOT, 0};
  uint64_t began = gs_now();
  int rc;
  while ((rc = try_ask(dir, request, reply, fd, given, err)) < 0 && gs_now() - began < patience_ns(rc)) {
    struct timespec nap = {0, RETRY_MS * 1000000L};
    nanosleep(&nap, NULL);
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
  return GS_JOINED;
}

uint32_t gs_join(struct gs_process *state) {
  const char *dir = gs_grant_dir();
  if (!dir)
    return GS_JOIN_BARE;
  struct gs_err err = {0};
  uint32_t joined = GS_JOIN_FAILED;
  gs_clock_find();
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
  int rc = try_ask(gs_grant_dir(), request, &reply, &fd, &bell, err);
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
