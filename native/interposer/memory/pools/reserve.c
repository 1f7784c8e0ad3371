#include "interposer/memory/pools/reserve.h"

#include <errno.h>

#include "interposer/memory/books/sizes.h"
#include "interposer/memory/pools/async_free.h"
#include "interposer/memory/physical/exports.h"
#include "interposer/memory/pools/pool_charge.h"
#include "interposer/os/system.h"
#include "interposer/process/refused.h"
#include "interposer/process/trace.h"
#include "interposer/time/marks/waits.h"
#include "interposer/time/streams/capture.h"
#include "page/page.h"

enum {
  AGAIN_NS = 20000000, /* while the device is full */
  SEEN_NS = 5000000,   /* while it refuses, and has room when it is looked at */
  SEEN_MOST = 20       /* so often in a row: then it refuses for another reason than room */
};

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

typedef int claim(int ordinal, uint64_t bytes, bool patient);

static bool ever_fits(int ordinal, uint64_t bytes) {
  return ordinal >= 0 && (uint32_t)ordinal < gs_process->ndevices &&
         bytes <= gs_process->limits->device[ordinal].memory_bytes;
}

static int reserve(int ordinal, uint64_t bytes, claim *now) {
  int rc = now(ordinal, bytes, false);
  if (rc < 0 && ever_fits(ordinal, bytes)) {
    settle_all(ordinal);
    rc = now(ordinal, bytes, true);
  }
  return rc;
}

static bool fits(int ordinal, uint64_t bytes) {
  struct gs_pages pages = {gs_process->limits, gs_process->usage};
  uint64_t limit = __atomic_load_n(&pages.limits->device[ordinal].memory_bytes, __ATOMIC_ACQUIRE);
  uint64_t used = gs_page_used(&pages, (uint32_t)ordinal);
  return used <= limit && bytes <= limit - used;
}

/* While the room is away nothing is claimed, not even for a moment: to the daemon it would be taken. */
static int would_fit(int ordinal, uint64_t bytes) {
  if (!ever_fits(ordinal, bytes))
    return -ENOMEM;
  if (!fits(ordinal, bytes))
    settle_all(ordinal);
  return fits(ordinal, bytes) ? -EAGAIN : -ENOMEM;
}

/* The word is read after the claim, and the daemon reads what is claimed after it has written the word. */
static int reserve_here(int ordinal, uint64_t bytes, claim *now, bool settles) {
  if (bytes == 0)
    return 0;
  if (gs_room_away())
    return would_fit(ordinal, bytes);
  int rc = settles ? reserve(ordinal, bytes, now) : now(ordinal, bytes, false);
  if (rc < 0 || !gs_room_away())
    return rc < 0 ? -ENOMEM : 0;
  if (now == gs_grow_now)
    gs_grown(ordinal, bytes, 0);
  else
    gs_give_back(ordinal, bytes);
  return -EAGAIN;
}

static int traced(int rc, int ordinal, uint64_t bytes) {
  if (rc == -ENOMEM) {
    trace_no_room(ordinal, bytes);
    gs_refusal_is(GS_REFUSED_LIMIT, ordinal, bytes);
  } else if (rc == -EAGAIN) {
    gs_refusal_is(GS_REFUSED_AWAY, ordinal, bytes);
  } else {
    gs_refusal_over(ordinal, bytes);
  }
  return rc;
}

int gs_reserve_here(int ordinal, uint64_t bytes) {
  return traced(reserve_here(ordinal, bytes, gs_reserve_now, true), ordinal, bytes);
}

bool gs_reserve_hopeless(int ordinal, uint64_t bytes) {
  return gs_room_away() && traced(would_fit(ordinal, bytes), ordinal, bytes) == -ENOMEM;
}

int gs_reserve_growth(int ordinal, uint64_t bytes, bool settles) {
  int rc = reserve_here(ordinal, bytes, gs_grow_now, settles);
  return settles || rc != -ENOMEM ? traced(rc, ordinal, bytes) : rc;
}

int gs_reserve(int ordinal, uint64_t bytes, struct gs_patience *patience) {
  int rc;
  while ((rc = gs_reserve_here(ordinal, bytes)) == -EAGAIN && gs_room_await(patience)) {
  }
  return rc;
}

/* ---- a full device ----------------------------------------------------------------------------------------------- */

/* Whether the device has less than the pages for these bytes, whoever has the others. Where it does not say: true. */
static bool device_is_full(uint64_t bytes) {
  size_t free, total;
  int mode = gs_capture_mode_push();
  bool full = gs_real.cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS || free < gs_round_up(bytes, GS_DEVICE_PAGE);
  gs_capture_mode_pop(mode);
  return full;
}

bool gs_driver_again(CUresult result, int ordinal, uint64_t bytes, struct gs_patience *patience) {
  if (GS_LIKELY(result != CUDA_ERROR_OUT_OF_MEMORY) || ordinal == GS_NO_DEVICE)
    return false;
  bool full = bytes && device_is_full(bytes);
  if (full)
    gs_refusal_is(GS_REFUSED_DEVICE, ordinal, bytes);
  if (!gs_passage())
    return false;
  /* room may have come free in between, and where memory moves somebody else may have taken it again */
  bool has_room = bytes && !full;
  patience->room_seen = has_room ? patience->room_seen + 1 : 0;
  if (has_room && (patience->room_seen == 1 || patience->room_seen > SEEN_MOST))
    return patience->room_seen == 1;
  uint64_t left = gs_patience_left(patience), nap = has_room ? SEEN_NS : AGAIN_NS;
  if (left)
    gs_nap(left < nap ? left : nap);
  return left > 0;
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
