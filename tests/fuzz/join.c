/* Arbitrary answers of a daemon to a join, or to another question. */
#include "../../native/interposer/process/connection.c"

#include "fuzz.h"

static void send_reply(int fd, const uint8_t *data, size_t size, unsigned descriptors) {
  union {
    char bytes[CMSG_SPACE(3 * sizeof(int))];
    struct cmsghdr align;
  } control = {{0}};
  struct iovec part = {(void *)(uintptr_t)data, size};
  struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1};
  int given[3] = {fd, fd, fd};
  if (descriptors) {
    whole.msg_control = control.bytes;
    whole.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&whole);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    memcpy(CMSG_DATA(header), given, descriptors * sizeof(int));
  }
  MUST(sendmsg(fd, &whole, MSG_NOSIGNAL) == (ssize_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes in = {data, size};
  struct gs_join_reply reply, answer = {GS_JOIN_MAGIC, GS_WIRE_VERSION, 0, 0, 0, 0, ""};
  struct gs_err err = {0, ""};
  int ends[2], bell, next;
  uint8_t shape = take8(&in);
  MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  if (shape & 4) {
    send_reply(ends[1], in.at, in.left < 4096 ? in.left : 4096, shape % 4);
  } else {
    take(&in, &answer.error, sizeof answer - offsetof(struct gs_join_reply, error));
    send_reply(ends[1], (const uint8_t *)&answer, sizeof answer, shape % 4);
  }
  struct gs_join_request request = {GS_JOIN_MAGIC, GS_WIRE_VERSION, GS_NO_SLOT, 0};
  int rc = ask(ends[0], &request, sizeof request, &reply, &bell, &err);
  if (rc == 0)
    MUST(bell >= -1 && memchr(reply.message, 0, sizeof reply.message));
  else
    MUST(err.code < 0 && *err.msg && memchr(err.msg, 0, sizeof err.msg));
  if (bell >= 0)
    close(bell);
  close(ends[0]);
  close(ends[1]);
  /* all received descriptors are closed: they would have had the next numbers */
  for (next = ends[1] + 1; next < ends[1] + 4; next++)
    MUST(fcntl(next, F_GETFD) < 0);
  return 0;
}
