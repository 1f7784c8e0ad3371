#define _GNU_SOURCE
#include "books.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sim/wire/sim_proto.h"

static void gone(const char *what) {
  perror(what);
  exit(3);
}

int books_connect(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct sim_request hello = {SIM_PROTO_MAGIC, SIM_PROTO_VERSION, SIM_HELLO, 0, SIM_ROLE_VIEWER, 0};
  struct sim_hello answer;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
      send(fd, &hello, sizeof hello, 0) != sizeof hello || recv(fd, &answer, sizeof answer, 0) < 16 || answer.error)
    gone(path);
  return fd;
}

/* The descriptor that came with the answer, -1 where none did. */
static int ask(int fd, uint32_t op, uint32_t device, struct sim_reply *reply) {
  struct sim_request request = {SIM_PROTO_MAGIC, SIM_PROTO_VERSION, op, device, 0, 0};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {reply, sizeof *reply};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
  int given = -1;
  if (send(fd, &request, sizeof request, 0) != sizeof request ||
      recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != sizeof *reply || reply->error)
    gone("the simulator's books");
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
    memcpy(&given, CMSG_DATA(header), sizeof given);
  return given;
}

struct books_times books_device(int fd, uint32_t device) {
  struct sim_reply reply;
  ask(fd, SIM_TIMES, device, &reply);
  return (struct books_times){reply.a, reply.b, reply.c};
}

uint64_t books_process(int fd, uint32_t device, pid_t pid) {
  struct sim_reply reply;
  struct sim_process row;
  int file = ask(fd, SIM_PROCESSES, device, &reply);
  uint64_t busy = 0;
  for (uint64_t i = 0; i < reply.a; i++)
    if (pread(file, &row, sizeof row, (off_t)(i * sizeof row)) == sizeof row && row.pid == pid)
      busy += row.busy_ns;
  close(file);
  return busy;
}

const char *books_all(int fd) {
  static char *text;
  static size_t room;
  struct sim_reply reply;
  int file = ask(fd, SIM_STATS, 0, &reply);
  if (room < reply.a + 1) {
    room = 2 * reply.a + 1;
    free(text);
    text = malloc(room);
  }
  if (text == NULL || pread(file, text, reply.a, 0) != (ssize_t)reply.a)
    gone("the simulator's books");
  text[reply.a] = '\0';
  close(file);
  return text;
}
