/* The connection to the engine. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "page/gs_root.h"
#include "sim/wire/wire.h"

static bool root_owned(const char *path) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode) && gs_is_roots(status.st_uid);
}

/* A user's own daemon makes grants that belong to the user (native/interposer/os/files/grant.c). */
static bool user_owned(const char *path) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

/* Whether this process has its grant where root's commands have it (gpushare/inject/apart.py). */
static bool has_own(const char *own) {
  int saved = errno; /* a driver that succeeds leaves it */
  char path[64];
  snprintf(path, sizeof path, "%s/sim", own);
  bool has = faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) == 0 && root_owned(own);
  errno = saved;
  return has;
}

/* Writes the socket's directory: GPUSHARE_SIM_DIR if set (processes without a grant), otherwise sim/ in the grant:
 * in that of root's command, or in GPUSHARE_GRANT_DIR if root or the user owns that, or in a container's. */
static int directory(char *out, size_t size) {
  const char *dir = getenv("GPUSHARE_SIM_DIR");
  if (dir && *dir)
    return snprintf(out, size, "%s", dir) < (int)size ? 0 : -ENAMETOOLONG;
  static const char own[] = "/run/gpushare/own";
  const char *grant = getenv("GPUSHARE_GRANT_DIR");
  if (has_own(own))
    grant = own;
  else if (grant == NULL || !(root_owned(grant) || user_owned(grant)))
    grant = "/run/gpushare/self";
  if (snprintf(out, size, "%s/sim", grant) >= (int)size)
    return -ENAMETOOLONG;
  /* checked for the effective user, with whose rights a setuid program opens files */
  return faccessat(AT_FDCWD, out, X_OK, AT_EACCESS) == 0 ? 0 : -ENOENT;
}

static int connect_in(int fd, const char *dir) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int opened = -1;
  if (snprintf(address.sun_path, sizeof address.sun_path, "%s/" SIM_SOCKET_NAME, dir) >= (int)sizeof address.sun_path) {
    opened = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
      return -errno;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" SIM_SOCKET_NAME, opened);
  }
  int error;
  do
    error = connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
  while (error == -EINTR);
  if (opened >= 0)
    close(opened);
  return error;
}

/* give: a descriptor to send along; -1: none */
static int ask(int fd, const struct sim_request *request, int give) {
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {(void *)(uintptr_t)request, sizeof *request};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (give >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof give);
    memcpy(CMSG_DATA(header), &give, sizeof give);
  }
  ssize_t done;
  do
    done = sendmsg(fd, &message, MSG_NOSIGNAL);
  while (done < 0 && errno == EINTR);
  return done == sizeof *request ? 0 : -EPIPE;
}

static int exchange(int fd, const struct sim_request *request, int give, void *answer, size_t bytes, int *fds,
                    int nfds) {
  ssize_t done;
  if (ask(fd, request, give))
    return -EPIPE;
  union {
    char bytes[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {answer, bytes};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  do
    done = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  while (done < 0 && errno == EINTR);
  for (int i = 0; i < nfds; i++)
    fds[i] = -1;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); done >= 0 && header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
      continue;
    int got = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (int i = 0; i < got; i++) {
      int received;
      memcpy(&received, CMSG_DATA(header) + (size_t)i * sizeof(int), sizeof received);
      if (i < nfds)
        fds[i] = received;
      else
        close(received);
    }
  }
  if (done == (ssize_t)bytes && message.msg_flags & MSG_CTRUNC) { /* this process has reached its limit of open files */
    for (int i = 0; i < nfds; i++)
      if (fds[i] >= 0)
        close(fds[i]);
    for (int i = 0; i < nfds; i++)
      fds[i] = -1;
    return -EMFILE;
  }
  return done == (ssize_t)bytes && *(uint32_t *)answer == SIM_PROTO_MAGIC ? 0 : -EPIPE;
}

int sim_wire_open(struct sim_wire *wire, enum sim_role role) {
  char dir[4096];
  wire->fd = -1;
  int error = directory(dir, sizeof dir);
  if (error)
    return error;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -errno;
  struct sim_request request = {SIM_PROTO_MAGIC, SIM_PROTO_VERSION, SIM_HELLO, 0, role, 0};
  error = connect_in(fd, dir);
  if (error == 0)
    error = exchange(fd, &request, -1, &wire->hello, sizeof wire->hello, NULL, 0);
  if (error == 0 && (wire->hello.version != SIM_PROTO_VERSION || wire->hello.ndevices > SIM_MAX_DEVICES))
    error = -EPROTO;
  if (error == 0)
    error = wire->hello.error;
  if (error) {
    close(fd);
    return error;
  }
  wire->fd = fd;
  return 0;
}

int sim_wire_give(struct sim_wire *wire, uint32_t op, uint32_t device, uint64_t a, uint64_t b, int fd,
                  struct sim_reply *reply, int *fds, int nfds) {
  struct sim_request request = {SIM_PROTO_MAGIC, SIM_PROTO_VERSION, op, device, a, b};
  if (wire->fd < 0)
    return -ENOTCONN;
  int error = exchange(wire->fd, &request, fd, reply, sizeof *reply, fds, nfds);
  return error ? error : reply->error;
}

int sim_wire_call(struct sim_wire *wire, uint32_t op, uint32_t device, uint64_t a, uint64_t b, struct sim_reply *reply,
                  int *fds, int nfds) {
  return sim_wire_give(wire, op, device, a, b, -1, reply, fds, nfds);
}

void sim_wire_close(struct sim_wire *wire) {
  if (wire->fd >= 0)
    close(wire->fd);
  wire->fd = -1;
}
