/* One question to the daemon over the grant's socket. */
#include "interposer/process/connection.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "interposer/os/files/files.h"
#include "interposer/os/system.h"

static int connect_to_daemon(const char *dir, int answer_ms, struct gs_err *err) {
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
  struct timeval timeout = {answer_ms / 1000, answer_ms % 1000 * 1000};
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
static int ask(int fd, const void *request, size_t bytes, struct gs_join_reply *reply, int *given, struct gs_err *err) {
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec body = {reply, sizeof *reply};
  /* CMSG_LEN, not CMSG_SPACE: the padding has room for a second descriptor, which would never be closed */
  struct msghdr message = {
      .msg_iov = &body, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
  *given = -1;
  ssize_t got = send(fd, request, bytes, MSG_NOSIGNAL);
  if (got == (ssize_t)bytes)
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
  if (message.msg_flags & MSG_CTRUNC)
    return gs_fail(err, -EPROTO, "the gpushare daemon's answer has no usable slot or descriptor");
  return 0;
}

int gs_daemon_ask(const char *dir, const void *request, size_t bytes, int answer_ms, struct gs_join_reply *reply,
                  int *fd, int *given, struct gs_err *err) {
  *given = -1;
  *fd = connect_to_daemon(dir, answer_ms, err);
  if (*fd < 0)
    return *fd;
  int rc = ask(*fd, request, bytes, reply, given, err);
  if (rc < 0) {
    close(*fd);
    if (*given >= 0)
      close(*given);
  }
  return rc;
}
