#include "interposer/memory/pools/reserve.h"

#include <errno.h>

#include "interposer/memory/pools/async_free.h"
#include "interposer/memory/physical/exports.h"
#include "interposer/memory/pools/pool_charge.h"
#include "interposer/process/passage.h"
#include "interposer/process/trace.h"
#include "interposer/time/marks/waits.h"
#include "page/page.h"

static void trace_no_room(int ordinal, uint64_t bytes) {
  if (ordinal < 0 || (uint32_t)ordinal >= gs_process->ndevices)
    return;
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  struct gs_memory memory = gs_page_memory(&pages, (uint32_t)ordinal, gs_process->total_bytes[ordinal]);
  gs_trace(GS_TRACE_NO_ROOM, ordinal, bytes, memory.free);
}

static void settle_frees(int ordinal) {
  if (__atomic_load_n(&gs_process->frees[ordinal], __ATOMIC_RELAXED))
    gs_frees_settle(ordinal);
}

/* Gives back all that can have been freed, including queued frees in streams of other devices. */
static void settle_all(int ordinal) {
  for (uint32_t i = 0; i < gs_process->ndevices; i++)
    settle_frees((int)i);
  gs_pools_settle(ordinal, false);
  gs_descriptors_settle();
}

static int reserve(int ordinal, uint64_t bytes, int (*now)(int ordinal, uint64_t bytes, bool patient)) {
  int rc = now(ordinal, bytes, false);
  if (rc < 0 && ordinal >= 0 && (uint32_t)ordinal < gs_process->ndevices &&
      bytes <= gs_process->limits->device[ordinal].memory_bytes) {
    settle_all(ordinal);
    rc = now(ordinal, bytes, true);
  }
  if (rc < 0)
    trace_no_room(ordinal, bytes);
  return rc;
}

/* A grant whose memory is away has no room on the device: what takes some waits until it is back. */
int gs_reserve(int ordinal, uint64_t bytes) {
  gs_await_memory();
  return reserve(ordinal, bytes, gs_reserve_now);
}

int gs_reserve_growth(int ordinal, uint64_t bytes) {
  gs_await_memory();
  return reserve(ordinal, bytes, gs_grow_now);
}

static void settle(int ordinal, bool waited) {
  if (ordinal < 0)
    return;
  settle_frees(ordinal);
  if (__atomic_load_n(&gs_process->loose_pools[ordinal], __ATOMIC_ACQUIRE))
    gs_pools_settle_loose(ordinal, waited);
}

void gs_memory_synced(int ordinal) { settle(ordinal, false); }
void gs_memory_waited(int ordinal) { settle(ordinal, true); }

void gs_stream_synced(struct gs_stream *stream, bool waited) {
  int ordinal = stream->device->ordinal; /* the handle may belong to another stream after that */
  gs_stream_done_with_others(stream);
  if (waited)
    gs_memory_waited(ordinal);
  else
    settle_frees(ordinal);
}
