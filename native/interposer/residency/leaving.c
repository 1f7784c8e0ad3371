/* Memory that was freed while work in flight may still use it. */
#include "interposer/residency/backing.h"

#include <string.h>

#include "interposer/memory/pools/async_free.h"
#include "interposer/os/system.h"
#include "interposer/process/passage/passage.h"
#include "interposer/residency/leaving.h"
#include "interposer/residency/tables.h"
#include "interposer/time/timing.h"

enum {
  ORDINAL = 0,          /* a grant that lends idle memory has one device */
  HURRY_NS = 100000000, /* longer than the mover needs for it, where nothing uses the memory any more */
  LOOK_NS = 200000
};

struct later {
  uint64_t address, number;
  CUevent event;     /* recorded behind that work; NULL: not yet behind all work of the context */
  CUcontext context; /* of the memory */
};

void gs_movable_end_later(uint64_t address, uint64_t number, const CUstream *stream) {
  struct gs_movables *own = gs_movables();
  struct later later = {.address = address, .number = number};
  struct gs_movable movable;
  if (!gs_movable_leaves(address, number, &movable))
    return;
  later.context = movable.context;
  if (stream && gs_real.cuEventCreate(&later.event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
      gs_real.cuEventRecord(later.event, *stream) != CUDA_SUCCESS) {
    gs_real.cuEventDestroy_v2(later.event);
    later.event = NULL;
  }
  gs_lock(&own->lock);
  bool kept = gs_list_extend(&own->later, sizeof later);
  if (kept)
    ((struct later *)own->later.record)[own->later.used++] = later;
  __atomic_add_fetch(&own->leaving, kept, __ATOMIC_RELAXED);
  gs_unlock(&own->lock);
  if (kept)
    gs_mover_call(gs_passage());
  /* else its addresses and its charge stay taken until the process ends */
}

/* ---- when it is not used any more -------------------------------------------------------------------------------- */

/* Whether no capture is open and none begins until the lock `piece` is given back. Looking at all work of a context would
 * end its captures. */
static bool no_capture(void) {
  return gs_none_inside() && __atomic_load_n(&gs_time()->captures, __ATOMIC_SEQ_CST) == 0;
}

static void remember(struct gs_movables *own, uint64_t number, CUevent event) {
  gs_lock(&own->lock);
  struct later *list = own->later.record; /* another thread's free may move it */
  for (uint32_t i = 0; i < own->later.used; i++)
    if (list[i].number == number)
      list[i].event = event;
  gs_unlock(&own->lock);
}

/* Records an event behind all work of the current context. False: the driver cannot. */
static bool mark(struct gs_movables *own, struct later *later) {
  if (!gs_real_has(GS_INDEX_cuCtxRecordEvent) || /* before CUDA 12.5 */
      gs_real.cuEventCreate(&later->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return false;
  if (gs_real.cuCtxRecordEvent(later->context, later->event) == CUDA_SUCCESS) {
    remember(own, later->number, later->event);
    return true;
  }
  gs_real.cuEventDestroy_v2(later->event);
  later->event = NULL;
  return false;
}

/* All work of the context, of which nothing is known yet. */
static bool context_done(struct gs_movables *own, struct later *later) {
  CUcontext popped;
  bool over = false;
  if (gs_real.cuCtxPushCurrent_v2(later->context) != CUDA_SUCCESS)
    return true;
  gs_lock(&gs_passage()->piece);
  bool looks = no_capture(), marked = looks && mark(own, later);
  gs_unlock(&gs_passage()->piece);
  if (marked)
    over = gs_real.cuEventQuery(later->event) != CUDA_ERROR_NOT_READY;
  else if (looks)
    over = gs_real.cuCtxSynchronize() != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  gs_real.cuCtxPopCurrent_v2(&popped);
  return over;
}

static bool done(struct gs_movables *own, struct later *later) {
  return later->event ? gs_real.cuEventQuery(later->event) != CUDA_ERROR_NOT_READY : context_done(own, later);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static bool later_at(struct gs_movables *own, uint32_t index, struct later *out) {
  gs_lock(&own->lock);
  bool found = index < own->later.used;
  if (found)
    *out = ((struct later *)own->later.record)[index];
  gs_unlock(&own->lock);
  return found;
}

static bool drop_later(struct gs_movables *own, uint64_t number) {
  bool found = false;
  gs_lock(&own->lock);
  struct later *list = own->later.record;
  for (uint32_t i = 0; i < own->later.used && !found; i++)
    if (list[i].number == number) {
      memmove(&list[i], &list[i + 1], (--own->later.used - i) * sizeof *list);
      found = true;
    }
  gs_unlock(&own->lock);
  return found;
}

static void end_later(struct gs_movables *own, const struct later *later, bool context_lives) {
  if (!drop_later(own, later->number))
    return;
  if (later->event && context_lives)
    gs_real.cuEventDestroy_v2(later->event);
  gs_movable_end(later->address, later->number);
  __atomic_sub_fetch(&own->leaving, 1, __ATOMIC_RELEASE);
}

uint32_t gs_movable_leaving(void) {
  struct gs_movables *own = gs_movables();
  return own ? __atomic_load_n(&own->leaving, __ATOMIC_ACQUIRE) : 0;
}

/* Ends those that are not used any more. Returns how many are left. */
static uint32_t settle(struct gs_movables *own) {
  struct later later;
  uint32_t left = 0;
  while (later_at(own, left, &later)) {
    if (done(own, &later))
      end_later(own, &later, true);
    else
      left++;
  }
  return left;
}

bool gs_movable_settle(void) {
  struct gs_movables *own = gs_movables();
  if (gs_movable_leaving() == 0)
    return false;
  if (!gs_events_begin(ORDINAL))
    return true;
  uint32_t left = settle(own);
  gs_events_end(ORDINAL);
  return left > 0;
}

bool gs_movable_hurry(uint32_t before) {
  uint64_t began = gs_now();
  while (before && gs_movable_leaving() >= before && gs_now() - began < HURRY_NS) {
    gs_mover_call(gs_passage());
    gs_nap(LOOK_NS);
  }
  return gs_movable_leaving() < before;
}

void gs_movable_context_gone(CUcontext context, CUcontext heir) {
  struct gs_movables *own = gs_movables();
  struct gs_movable gone;
  struct later later;
  if (!own)
    return;
  for (uint32_t i = 0; later_at(own, i, &later);) {
    if (later.context == context)
      end_later(own, &later, false);
    else
      i++;
  }
  if (heir)
    gs_movable_inherit(context, heir);
  else
    while (gs_movable_of(context, &gone))
      gs_movable_abandon(gone.address, gone.number);
}
