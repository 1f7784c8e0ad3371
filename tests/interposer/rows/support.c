/* Setup of snippets before they call their function, through the linked functions of the driver. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rows.h"

extern const char rows_ptx[];
extern char **environ;

enum { KERNEL_NS = 100000, FLOAT32 = 0x20 };

/* ---- contexts, memory ---- */

CUcontext context(struct rows *r) {
  if (r->ctx == NULL) {
    need(r, cuInit(0), "cuInit");
    need(r, cuCtxCreate_v2(&r->ctx, 0, r->device), "a context");
  }
  return r->ctx;
}

CUstream stream(struct rows *r) {
  context(r);
  if (r->stream == NULL)
    need(r, cuStreamCreate(&r->stream, 0), "a stream");
  return r->stream;
}

CUdeviceptr memory(struct rows *r, size_t bytes) {
  CUdeviceptr_v1 at = 0;
  context(r);
  need(r, cuMemAlloc(&at, (unsigned)bytes), "device memory");
  return at;
}

CUarray array_1d(struct rows *r) {
  const CUDA_ARRAY_DESCRIPTOR about = {.Width = BYTES / 4, .Format = FLOAT32, .NumChannels = 1};
  CUarray array = NULL;
  context(r);
  need(r, cuArrayCreate_v2(&array, &about), "an array");
  return array;
}

CUarray array_2d(struct rows *r) {
  const CUDA_ARRAY_DESCRIPTOR about = {
      .Width = PITCH / 4, .Height = BYTES / PITCH, .Format = FLOAT32, .NumChannels = 1};
  CUarray array = NULL;
  context(r);
  need(r, cuArrayCreate_v2(&array, &about), "an array of rows");
  return array;
}

/* Rows run one after another: eight buffers are enough for each. */
unsigned char *zeroes(void) {
  static unsigned char buffer[8][BYTES];
  static unsigned next;
  return memset(buffer[next++ % 8], 0, BYTES);
}

unsigned char *pattern(void) {
  static unsigned char buffer[BYTES];
  for (unsigned i = 0; i < BYTES; i++)
    buffer[i] = (unsigned char)(i * 7 + i / 256 + 1);
  return buffer;
}

void settle(struct rows *r) { need(r, cuCtxSynchronize(), "the context's work ends"); }

void put(struct rows *r, CUdeviceptr to, const void *from, size_t bytes) {
  need(r, cuMemcpyHtoD_v2(to, from, bytes), "a copy to the device");
}

void holds(struct rows *r, CUdeviceptr at, const void *wanted, size_t bytes) {
  unsigned char *got = zeroes();
  settle(r);
  need(r, cuMemcpyDtoH_v2(got, at, bytes), "a copy from the device");
  same(r, got, wanted, bytes, "other bytes on the device");
}

/* Arrays of one and of two dimensions have the same bytes in the same order. */
static CUDA_MEMCPY2D whole_array(struct rows *r, CUarray array) {
  CUDA_ARRAY_DESCRIPTOR about;
  need(r, cuArrayGetDescriptor_v2(&about, array), "what the array is");
  size_t width = about.Width * 4;
  return (CUDA_MEMCPY2D){
      .srcPitch = width, .dstPitch = width, .WidthInBytes = width, .Height = about.Height ? about.Height : 1};
}

void array_holds(struct rows *r, CUarray array, const void *wanted) {
  unsigned char *got = zeroes();
  CUDA_MEMCPY2D copy = whole_array(r, array);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = got;
  settle(r);
  need(r, cuMemcpy2D_v2(&copy), "a copy from the array");
  same(r, got, wanted, BYTES, "other bytes in the array");
}

void put_array(struct rows *r, CUarray array, const void *from) {
  CUDA_MEMCPY2D copy = whole_array(r, array);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  need(r, cuMemcpy2D_v2(&copy), "a copy into the array");
}

/* ---- kernels and graphs ---- */

void kernel_ready(struct rows *r, struct kernel *k, CUstream on) {
  context(r);
  *k = (struct kernel){.ns = KERNEL_NS, .stream = on};
  k->params[0] = &k->ns;
  need(r, cuModuleLoadData(&k->module, rows_ptx), "the module");
  need(r, cuModuleGetFunction(&k->function, k->module, "spin_ns"), "the kernel");
  need(r, cuEventCreate(&k->before, 0), "an event");
  need(r, cuEventCreate(&k->after, 0), "an event");
  need(r, cuEventRecord(k->before, on), "record an event");
}

void kernel_ran(struct rows *r, struct kernel *k) {
  float ms = 0;
  need(r, cuEventRecord(k->after, k->stream), "record an event");
  need(r, cuEventSynchronize(k->after), "wait for the kernel");
  need(r, cuEventElapsedTime(&ms, k->before, k->after), "the kernel's time");
  /* the milliseconds are a float with 24 bits */
  expect(r, (double)ms * 1e6 >= (double)k->ns * 0.999, "the kernel did not run for its time");
  need(r, cuEventRecord(k->before, k->stream), "record an event"); /* for the next */
}

void capture(struct rows *r, CUstream on) {
  need(r, cuStreamBeginCapture_v2(on, CU_STREAM_CAPTURE_MODE_RELAXED), "begin a capture");
}

CUgraph captured(struct rows *r, CUstream on, size_t nodes) {
  CUgraph graph = NULL;
  size_t count = 0;
  need(r, cuStreamEndCapture(on, &graph), "end the capture");
  need(r, cuGraphGetNodes(graph, NULL, &count), "count the nodes");
  expect(r, count == nodes, "other nodes were captured");
  return graph;
}

CUgraphExec instantiated(struct rows *r, CUgraph graph) {
  CUgraphExec exec = NULL;
  need(r, cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate the graph");
  return exec;
}

struct hold hold(struct rows *r, CUstream on) {
  struct hold held = {NULL, on};
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemHostAlloc((void **)&held.flag, sizeof *held.flag, 2), "a word the stream waits for");
  need(r, cuMemHostGetDevicePointer_v2(&at, held.flag, 0), "its address");
  __atomic_store_n(held.flag, 0, __ATOMIC_RELEASE);
  need(r, cuStreamWaitValue32_v2(on, at, 1, CU_STREAM_WAIT_VALUE_EQ), "hold the stream");
  return held;
}

void let_go(struct hold *held) { __atomic_store_n(held->flag, 1, __ATOMIC_RELEASE); }

/* ---- the other process ---- */

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
