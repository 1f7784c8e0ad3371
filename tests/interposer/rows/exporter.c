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
  int fd; /* in the other process */
  unsigned char bytes[64];
};

struct exporter exporter_start(struct rows *r, const char *what) {
  struct exporter other = {.fd = -1};
  struct sent sent = {.result = CUDA_ERROR_UNKNOWN, .fd = -1};
  int pair[2];
  char number[16], path[64];
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
  expect(r, read(other.socket, &sent, sizeof sent) == sizeof sent, "the other process sent nothing");
  snprintf(path, sizeof path, "/proc/%d/fd/%d", other.pid, sent.fd);
  if (sent.fd >= 0)
    other.fd = open(path, O_RDWR | O_CLOEXEC);
  other.result = sent.result;
  memcpy(other.bytes, sent.bytes, sizeof other.bytes);
  return other;
}

void exporter_end(struct exporter *other) {
  close(other->socket); /* it waits for that */
  if (other->fd >= 0)
    close(other->fd);
  waitpid(other->pid, NULL, 0);
}

static CUresult export_pool(struct sent *sent) {
  const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemoryPool pool;
  CUdeviceptr at;
  CUmemPoolPtrExportData about = {{0}};
  CUresult result = cuMemPoolCreate(&pool, &properties);
  if (result == CUDA_SUCCESS)
    result = cuMemPoolExportToShareableHandle(&sent->fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
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
  CUdeviceptr_v1 at = 0; /* memory that is never moved: only that can be shared */
  CUipcMemHandle handle = {{0}};
  CUresult result = cuMemAlloc(&at, BYTES);
  if (result == CUDA_SUCCESS)
    result = cuMemcpyHtoD_v2(at, pattern(), BYTES);
  if (result == CUDA_SUCCESS)
    result = cuIpcGetMemHandle(&handle, at);
  memcpy(sent->bytes, &handle, sizeof sent->bytes);
  return result;
}

int exporter_main(const char *what, int socket) {
  struct sent sent = {.fd = -1};
  CUcontext ctx;
  char end;
  sent.result = cuInit(0);
  if (sent.result == CUDA_SUCCESS)
    sent.result = cuCtxCreate_v2(&ctx, 0, 0);
  if (sent.result == CUDA_SUCCESS)
    sent.result = strcmp(what, "pool") == 0 ? export_pool(&sent) : export_memory(&sent);
  if (write(socket, &sent, sizeof sent) != sizeof sent)
    return 1;
  return read(socket, &end, 1) > 0;
}
