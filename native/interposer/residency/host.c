#include "interposer/residency/host.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/memory/books/sizes.h"
#include "interposer/os/files/grant.h"
#include "interposer/os/system.h"
#include "interposer/process/connection.h"
#include "interposer/residency/state.h"

#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE 14
#endif

enum {
  SEGMENT_MS = 30000,  /* the daemon has a segment made, which means to clear its pages */
  SEGMENT = 256 << 20, /* asked for at once: pinning one ahead keeps a call of the program waiting for that long */
  ROOM = 2             /* times the grant's limit: addresses cost nothing, and it may be resized */
};

uint64_t gs_host_bytes(void) {
  const struct gs_host *host = &gs_process->mover->host;
  const struct gs_host_segment *last = host->segments ? &host->segment[host->segments - 1] : NULL;
  return last ? last->from + last->bytes : 0;
}

void *gs_host_at(uint64_t offset) { return gs_process->mover->host.base + offset; }

static const struct gs_host_segment *segment_of(uint64_t offset) {
  const struct gs_host *host = &gs_process->mover->host;
  for (uint32_t i = 0; i < host->segments; i++)
    if (offset - host->segment[i].from < host->segment[i].bytes)
      return &host->segment[i];
  return NULL;
}

uint64_t gs_host_span(uint64_t offset, uint64_t bytes) {
  const struct gs_host_segment *segment = segment_of(offset);
  uint64_t rest = segment ? segment->from + segment->bytes - offset : 0;
  return rest < bytes ? rest : bytes;
}

/* ---- asking the daemon ---- */

static int ask(uint32_t magic, uint64_t bytes, uint32_t ordinal, int *given) {
  struct gs_process *state = gs_process;
  struct gs_segment_request request = {.magic = magic,
                                       .version = GS_WIRE_VERSION,
                                       .slot = state->slot_index,
                                       .generation = state->generation,
                                       .bytes = bytes,
                                       .device = ordinal};
  size_t size = magic == GS_SEGMENT_MAGIC ? sizeof request : sizeof(struct gs_join_request);
  struct gs_join_reply reply;
  struct gs_err err = {0};
  int connection;
  int rc = gs_daemon_ask(gs_grant_dir(), &request, size, bytes ? SEGMENT_MS : GS_ANSWER_MS, &reply, &connection, given,
                         &err);
  if (rc == 0)
    close(connection);
  return rc;
}

bool gs_daemon_look(void) {
  int given = -1;
  int rc = ask(GS_LOOK_MAGIC, 0, 0, &given);
  if (given >= 0)
    close(given);
  return rc == 0;
}

/* ---- segments ---- */

static int reserve_addresses(int ordinal) {
  struct gs_host *host = &gs_process->mover->host;
  uint64_t most = ROOM * gs_round_up(gs_process->limits->device[ordinal].memory_bytes, GS_DEVICE_PAGE);
  if (host->base)
    return 0;
  void *at = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return -ENOSPC;
  madvise(at, most, MADV_DONTFORK);
  host->base = at;
  host->most = most;
  return 0;
}

static int add_segment(int ordinal, uint64_t bytes) {
  struct gs_host *host = &gs_process->mover->host;
  uint64_t from = gs_host_bytes();
  int file = -1;
  if (host->segments == GS_SEGMENTS || from + bytes > host->most)
    return -ENOSPC;
  host->owed = true;
  int rc = ask(GS_SEGMENT_MAGIC, bytes, (uint32_t)ordinal, &file);
  if (rc < 0 || file < 0)
    return rc == -EPERM ? -ENOSPC : rc < 0 ? rc : -EPROTO;
  struct stat is;
  if (gs_fstat(file, &is) < 0 || (uint64_t)is.st_size < bytes)
    rc = -EPROTO; /* a shorter file would be a SIGBUS at its end */
  void *at =
      rc < 0 ? MAP_FAILED : mmap(host->base + from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  close(file);
  if (at == MAP_FAILED)
    return rc < 0 ? rc : -ENOSPC;
  madvise(at, bytes, MADV_DONTFORK);
  madvise(at, bytes, MADV_HUGEPAGE);
  struct gs_host_segment *segment = &host->segment[host->segments++];
  segment->from = from;
  segment->bytes = bytes;
  __atomic_store_n(&segment->pinned_in, NULL, __ATOMIC_RELEASE);
  return 0;
}

int gs_host_get(int ordinal, uint64_t bytes) {
  int rc = bytes ? reserve_addresses(ordinal) : 0;
  uint64_t have;
  while (rc == 0 && (have = gs_host_bytes()) < bytes) {
    uint64_t more = gs_round_up(bytes - have, GS_DEVICE_PAGE);
    rc = add_segment(ordinal, more < SEGMENT ? more : SEGMENT);
  }
  return rc;
}

bool gs_host_pin_next(CUcontext context) {
  struct gs_host *host = &gs_process->mover->host;
  for (uint32_t i = 0; i < host->segments; i++) {
    struct gs_host_segment *segment = &host->segment[i];
    if (__atomic_load_n(&segment->pinned_in, __ATOMIC_ACQUIRE))
      continue;
    if (gs_real.cuMemHostRegister_v2(host->base + segment->from, segment->bytes, CU_MEMHOSTREGISTER_PORTABLE) !=
        CUDA_SUCCESS)
      return false;
    __atomic_store_n(&segment->pinned_in, context, __ATOMIC_RELEASE);
    return true;
  }
  return false;
}

void gs_host_context_gone(CUcontext context) {
  struct gs_mover *mover = __atomic_load_n(&gs_process->mover, __ATOMIC_ACQUIRE);
  CUcontext works_in = context;
  if (mover)
    __atomic_compare_exchange_n(&mover->works_in, &works_in, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  for (uint32_t i = 0; mover && i < GS_SEGMENTS; i++) {
    CUcontext pinned = context;
    __atomic_compare_exchange_n(&mover->host.segment[i].pinned_in, &pinned, NULL, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_RELAXED);
  }
}

void gs_host_drop(int ordinal) {
  struct gs_host *host = &gs_process->mover->host;
  int given = -1;
  if (!host->owed)
    return;
  for (uint32_t i = 0; i < host->segments; i++) {
    struct gs_host_segment *segment = &host->segment[i];
    if (__atomic_exchange_n(&segment->pinned_in, NULL, __ATOMIC_ACQ_REL))
      gs_real.cuMemHostUnregister(host->base + segment->from);
  }
  /* the addresses go too: they count against the program's RLIMIT_AS, and the grant may have another limit next time */
  if (host->base && munmap(host->base, host->most) < 0)
    return; /* the memory stays ours, and is used again */
  host->base = NULL;
  host->segments = 0;
  host->owed = ask(GS_SEGMENT_MAGIC, 0, (uint32_t)ordinal, &given) < 0;
  if (given >= 0)
    close(given);
}
