/* The other process, which shares its memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rows.h"

extern char **environ;

struct sent {
  CUresult result;
  unsigned char bytes[64];
};

static void send_to(int socket, const struct sent *what, int fd) {
  union {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {.room = {0}};
  struct iovec part = {(void *)what, sizeof *what};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    message.msg_control = control.room;
    message.msg_controllen = sizeof control.room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (sendmsg(socket, &message, 0) < 0)
    _exit(7);
}

static int receive_from(int socket, struct sent *what) {
  union {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {what, sizeof *what};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
  int fd = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *what)
    what->result = CUDA_ERROR_UNKNOWN;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS)
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

struct exporter exporter_start(struct rows *r, const char *what) {
  struct exporter other = {.fd = -1};
  struct sent sent = {0};
  int pair[2];
  char number[16];
  char *arguments[] = {"rows", "exporter", (char *)what, number, NULL};
  posix_spawn_file_actions_t actions;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    _exit(7);
  enum { THEIRS = 9 };
  snprintf(number, sizeof number, "%d", THEIRS);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], THEIRS);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (posix_spawn(&other.pid, "/proc/self/exe", &actions, NULL, arguments, environ) != 0)
    _exit(7);
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  other.socket = pair[0];
  other.fd = receive_from(other.socket, &sent);
  other.result = sent.result;
  memcpy(other.bytes, sent.bytes, sizeof other.bytes);
  (void)r;
  return other;
}

void exporter_end(struct exporter *other) {
  close(other->socket); /* it waits for that */
  if (other->fd >= 0)
    close(other->fd);
  waitpid(other->pid, NULL, 0);
}

static CUresult export_pool(struct sent *sent, int *fd) {
  const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemoryPool pool;
  CUdeviceptr at;
  CUmemPoolPtrExportData about = {{0}};
  CUresult result = cuMemPoolCreate(&pool, &properties);
  if (result == CUDA_SUCCESS)
    result = cuMemPoolExportToShareableHandle(fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS)
    result = cuMemAllocFromPoolAsync(&at, BYTES, pool, NULL);
  if (result == CUDA_SUCCESS)
    result = cuMemcpyHtoD_v2(at, pattern(), BYTES);
  if (result == CUDA_SUCCESS)
    result = cuMemPoolExportPointer(&about, at);
  memcpy(sent->bytes, &about, sizeof sent->bytes);
  return result;
}

static CUresult export_memory(struct sent *sent) {
  CUdeviceptr at;
  CUipcMemHandle handle = {{0}};
  CUresult result = cuMemAlloc_v2(&at, BYTES);
  if (result == CUDA_SUCCESS)
    result = cuMemcpyHtoD_v2(at, pattern(), BYTES);
  if (result == CUDA_SUCCESS)
    result = cuIpcGetMemHandle(&handle, at);
  memcpy(sent->bytes, &handle, sizeof sent->bytes);
  return result;
}

int exporter_main(const char *what, int socket) {
  struct sent sent = {0};
  CUcontext ctx;
  int fd = -1;
  char end;
  sent.result = cuInit(0);
  if (sent.result == CUDA_SUCCESS)
    sent.result = cuCtxCreate_v2(&ctx, 0, 0);
  if (sent.result == CUDA_SUCCESS)
    sent.result = strcmp(what, "pool") == 0 ? export_pool(&sent, &fd) : export_memory(&sent);
  send_to(socket, &sent, fd);
  return read(socket, &end, 1) > 0;
}
