/* External semaphores. On hardware another interface, such as Vulkan, makes them. Here the descriptor may be of
 *   an eventfd: a signal adds to it, a wait takes what is there;
 *   a file in memory (memfd_create, shm_open): its first eight bytes are the value of a timeline, or 1 while a semaphore
 *   without a timeline is signalled. An empty file gets these bytes.
 * All processes that have a descriptor of the same object share its state. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sim/model/handle.h"
#include "sim/model/model.h"

struct semaphore {
  uint32_t magic;
  int fd;          /* the program's descriptor, owned by this object since the import */
  uint64_t *value; /* NULL: an eventfd */
  bool timeline;
};

static struct sim_kind kind = {sizeof(struct semaphore), 0x73656d61, NULL};

static CUresult get(CUexternalSemaphore handle, struct semaphore **semaphore) {
  *semaphore = (struct semaphore *)handle;
  return *semaphore && (*semaphore)->magic == kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static bool is_eventfd(int fd) {
  char path[64], name[64];
  snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd); /* the main thread may have ended */
  ssize_t length = readlink(path, name, sizeof name - 1);
  name[length > 0 ? length : 0] = '\0';
  return strcmp(name, "anon_inode:[eventfd]") == 0;
}

static CUresult open_state(struct semaphore *made) {
  struct stat about;
  if (fstat(made->fd, &about) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!S_ISREG(about.st_mode))
    return !made->timeline && is_eventfd(made->fd) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (about.st_size == 0 && ftruncate(made->fd, sizeof *made->value) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (about.st_size != 0 && about.st_size < (off_t)sizeof *made->value)
    return CUDA_ERROR_INVALID_VALUE;
  void *at = mmap(NULL, sizeof *made->value, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
  if (at == MAP_FAILED)
    return CUDA_ERROR_INVALID_VALUE;
  made->value = at;
  return CUDA_SUCCESS;
}

CUresult cuImportExternalSemaphore(CUexternalSemaphore *extSem_out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *semHandleDesc) {
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (!extSem_out || !semHandleDesc || semHandleDesc->flags)
    return CUDA_ERROR_INVALID_VALUE;
  bool timeline = semHandleDesc->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  if (!timeline && semHandleDesc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD)
    return CUDA_ERROR_NOT_SUPPORTED;
  struct semaphore made = {.magic = kind.magic, .fd = semHandleDesc->handle.fd, .timeline = timeline};
  result = open_state(&made);
  if (result)
    return result;
  sim_lock();
  struct semaphore *kept = sim_handle_new(&kind);
  if (kept)
    *kept = made;
  sim_unlock();
  if (kept == NULL) {
    if (made.value)
      munmap(made.value, sizeof *made.value);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *extSem_out = (CUexternalSemaphore)kept;
  return CUDA_SUCCESS;
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore extSem) {
  struct semaphore *semaphore;
  CUresult result = get(extSem, &semaphore);
  if (result)
    return result;
  sim_lock();
  if (semaphore->value)
    munmap(semaphore->value, sizeof *semaphore->value);
  close(semaphore->fd);
  sim_handle_free(&kind, semaphore);
  sim_unlock();
  return CUDA_SUCCESS;
}

/* ---- in stream order --------------------------------------------------------------------------------------------- */

struct access {
  struct semaphore *semaphore;
  uint64_t value; /* of a timeline */
};

/* The semaphore, unless it was destroyed meanwhile, which a program must not do. */
static struct semaphore *alive(const void *payload) {
  struct semaphore *semaphore = ((const struct access *)payload)->semaphore;
  return semaphore->magic == kind.magic ? semaphore : NULL;
}

static void signal_now(void *payload) {
  const struct semaphore *semaphore = alive(payload);
  uint64_t value = ((const struct access *)payload)->value, one = 1;
  if (semaphore == NULL)
    return;
  if (semaphore->value) {
    __atomic_store_n(semaphore->value, semaphore->timeline ? value : one, __ATOMIC_RELEASE);
  } else {
    ssize_t written = write(semaphore->fd, &one, sizeof one);
    (void)written; /* it fails only at a count that no program reaches */
  }
}

/* Another process may take the count between a poll and the read. */
static bool take_count(int fd) {
  uint64_t count;
  struct pollfd readable = {.fd = fd, .events = POLLIN};
  if (poll(&readable, 1, 0) != 1)
    return false;
  ssize_t got = preadv2(fd, &(struct iovec){&count, sizeof count}, 1, -1, RWF_NOWAIT);
  if (got < 0 && errno == EOPNOTSUPP) /* a kernel whose eventfds cannot do that */
    got = read(fd, &count, sizeof count);
  return got == sizeof count;
}

static bool wait_over(const void *payload) {
  const struct semaphore *semaphore = alive(payload);
  uint64_t one = 1;
  if (semaphore == NULL)
    return true;
  if (semaphore->value == NULL)
    return take_count(semaphore->fd);
  if (semaphore->timeline)
    return __atomic_load_n(semaphore->value, __ATOMIC_ACQUIRE) >= ((const struct access *)payload)->value;
  return __atomic_compare_exchange_n(semaphore->value, &one, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static CUresult submit(struct sim_stream *stream, CUexternalSemaphore handle, bool wait, uint64_t value,
                       unsigned flags) {
  struct access access = {.value = value};
  CUresult result = get(handle, &access.semaphore);
  if (result)
    return result;
  if (flags & ~3u) /* for memory of NvSciBuf, which does not exist here */
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_op op = {.resource = wait ? SIM_WAIT_VALUE : SIM_INSTANT,
                      .run = wait ? NULL : signal_now,
                      .ready = wait ? wait_over : NULL,
                      .node_type = wait ? CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT : CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL,
                      .payload = &access,
                      .payload_bytes = sizeof access};
  return sim_submit(stream, &op);
}

CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *extSemArray,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray,
                                         unsigned int numExtSems, CUstream handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result == CUDA_SUCCESS && numExtSems && (!extSemArray || !paramsArray))
    result = CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < numExtSems && result == CUDA_SUCCESS; i++)
    result = submit(stream, extSemArray[i], false, paramsArray[i].params.fence.value, paramsArray[i].flags);
  return result;
}

CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *extSemArray,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems,
                                       CUstream handle) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result == CUDA_SUCCESS && numExtSems && (!extSemArray || !paramsArray))
    result = CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < numExtSems && result == CUDA_SUCCESS; i++)
    result = submit(stream, extSemArray[i], true, paramsArray[i].params.fence.value, paramsArray[i].flags);
  return result;
}
