/* Messages with descriptors, and the identity of the peer. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "sim/engine/engine.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

int message_send(int fd, const void *data, size_t bytes, const int *fds, int nfds) {
  union {
    char bytes[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {(void *)(uintptr_t)data, bytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (nfds) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
    memcpy(CMSG_DATA(header), fds, (size_t)nfds * sizeof(int));
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes ? 0 : -1;
}

int message_peer(int fd, pid_t pid) {
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0)
    return pidfd;
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

ssize_t message_receive(int fd, struct sim_request *request, int *given) {
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {request, sizeof *request};
  /* CMSG_LEN, not CMSG_SPACE: the padding has room for a second descriptor, which would leak */
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
  ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
  *given = -1;
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    memcpy(given, CMSG_DATA(header), sizeof *given);
  return got;
}

int message_address(const char *path, struct sockaddr_un *address, struct gs_err *err) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address->sun_path)
    return gs_fail(err, -ENAMETOOLONG, "socket path %s is longer than %zu bytes", path, sizeof address->sun_path - 1);
  memcpy(address->sun_path, path, strlen(path) + 1);
  return 0;
}
