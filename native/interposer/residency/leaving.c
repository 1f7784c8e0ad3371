/* Memory that was freed while work in flight may still use it. */
#include "interposer/residency/backing.h"

#include <string.h>

#include "interposer/process/passage.h"
#include "interposer/residency/leaving.h"
#include "interposer/residency/tables.h"

struct later {
  uint64_t address, number;
  CUevent event;     /* recorded behind that work; NULL: all work of the context */
  CUcontext context; /* of the event */
};

void gs_movable_end_later(uint64_t address, uint64_t number, const CUstream *stream) {
  struct gs_movables *own = gs_movables();
  struct later later = {.address = address, .number = number};
  struct gs_movable movable;
  if (!gs_movable_leaves(address, number, &movable))
    return;
  gs_real.cuCtxGetCurrent(&later.context);
  if (stream && gs_real.cuEventCreate(&later.event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
      gs_real.cuEventRecord(later.event, *stream) != CUDA_SUCCESS) {
    gs_real.cuEventDestroy_v2(later.event);
    later.event = NULL;
  }
  gs_lock(&own->lock);
  bool kept = gs_list_extend(&own->later, sizeof later);
  if (kept)
    ((struct later *)own->later.record)[own->later.used++] = later;
  gs_unlock(&own->lock);
  gs_movable_publish();
  if (kept)
    gs_mover_call(gs_passage());
  /* else its addresses and its charge stay taken until the process ends */
}

/* Whether the work behind which it was freed is done. */
static bool done(const struct later *later) {
  if (later->event)
    return gs_real.cuEventQuery(later->event) != CUDA_ERROR_NOT_READY;
  if (!later->context)
    return true;
  if (gs_real.cuCtxPushCurrent_v2(later->context) != CUDA_SUCCESS)
    return true;
  CUcontext popped;
  CUresult result = gs_real.cuCtxSynchronize();
  gs_real.cuCtxPopCurrent_v2(&popped);
  return result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool later_at(struct gs_movables *own, uint32_t index, struct later *out) {
  gs_lock(&own->lock);
  bool found = index < own->later.used;
  if (found)
    *out = ((struct later *)own->later.record)[index];
  gs_unlock(&own->lock);
  return found;
}

static bool drop_later(struct gs_movables *own, uint64_t number) {
  struct later *list = own->later.record;
  bool found = false;
  gs_lock(&own->lock);
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
}

bool gs_movable_settle(void) {
  struct gs_movables *own = gs_movables();
  struct later later;
  uint32_t left = 0;
  while (own && later_at(own, left, &later)) {
    if (done(&later))
      end_later(own, &later, true);
    else
      left++;
  }
  return left > 0;
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
  gs_movable_publish();
}
