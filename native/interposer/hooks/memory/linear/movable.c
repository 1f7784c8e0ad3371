/* Movable memory is made within the passage, and while the thread waits for room it is outside: the mover waits for those
 * inside. */
#include "interposer/hooks/memory/linear/movable.h"

#include "interposer/hooks/memory/linear/reserved.h"
#include "interposer/memory/books/charge.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/memory/pools/async_free.h"
#include "interposer/process/device.h"
#include "interposer/process/refused.h"
#include "interposer/residency/backing.h"
#include "interposer/residency/leaving.h"
#include "interposer/residency/mover.h"
#include "interposer/time/streams/capture.h"

/* Wider rows are not movable: the proxy is as wide. */
enum { ROW_MOST = 64 << 10 };

/* One that is asked for, and an attempt to make it. */
struct wish {
  struct gs_rows *rows; /* NULL: bytes */
  uint64_t bytes;       /* asked for; of rows, as far apart as they may be */
  struct gs_movable made;
  struct gs_reserved reserved;
  struct gs_patience patience;
  bool away;  /* the grant's room is */
  bool asked; /* the driver was, so the result is its own */
};

static uint64_t pitch_most(const struct gs_rows *rows) { return gs_round_up(rows->width, GS_PITCH_ROUND); }

/* The proxy: a byte, or a row, by which the driver says how far apart rows are. */
static CUresult make_proxy(struct wish *wish) {
  struct gs_movable *made = &wish->made;
  struct gs_rows *rows = wish->rows;
  if (!rows) {
    made->asked = wish->bytes;
    made->proxied = GS_BLOCK_ROUND;
    return gs_real.cuMemAlloc_v2(&made->proxy, 1);
  }
  CUresult result = gs_real.cuMemAllocPitch_v2(&made->proxy, &rows->pitch, rows->width, 1, rows->element);
  made->asked = result == CUDA_SUCCESS ? rows->pitch * rows->height : 0;
  made->proxied = result == CUDA_SUCCESS ? (uint32_t)gs_round_up(rows->pitch, GS_BLOCK_ROUND) : 0;
  return result;
}

/* With the reservation, inside. */
static CUresult make(struct wish *wish, uint64_t *address) {
  struct gs_movable made;
  struct gs_allocation known;
  CUresult result = make_proxy(wish);
  bool proxy = result == CUDA_SUCCESS;
  made = wish->made;
  made.ordinal = wish->reserved.ordinal;
  made.context = wish->reserved.maker.context;
  if (proxy && !gs_reserved_correct(&wish->reserved, gs_movable_bytes(made.asked) + made.proxied))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  else if (proxy)
    result = gs_movable_make(made, address);
  if (proxy && result != CUDA_SUCCESS)
    gs_real.cuMemFree_v2(made.proxy);
  gs_reserved_end(&wish->reserved, result, result == CUDA_SUCCESS ? *address : 0);
  /* its context has ended meanwhile, and its charge is given back */
  if (result == CUDA_SUCCESS && !gs_life_copy(&gs_books()->pointers, *address, &known) &&
      gs_movable_find(*address, &made))
    gs_movable_abandon(made.address, made.number);
  return result;
}

static CUresult attempt(struct wish *wish, int ordinal, uint64_t *address) {
  uint64_t bytes = gs_movable_bytes(wish->bytes) + (wish->rows ? pitch_most(wish->rows) : GS_BLOCK_ROUND);
  wish->away = wish->asked = false;
  if (gs_reserve_hopeless(ordinal, bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!gs_touch_begin_for(&wish->patience)) {
    gs_room_refused();
    gs_refusal_is(GS_REFUSED_AWAY, ordinal, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = gs_reserved_begin(&wish->reserved, bytes, true, &wish->away);
  wish->asked = result == CUDA_SUCCESS;
  if (wish->asked)
    result = make(wish, address);
  gs_touch_end();
  return result;
}

static bool again(struct wish *wish, CUresult result) {
  if (wish->away)
    return gs_room_await(&wish->patience);
  return wish->asked && gs_driver_again(result, wish->reserved.ordinal, wish->reserved.bytes, &wish->patience);
}

/* False: it is to be the driver's own. */
static bool grant(struct wish *wish, uint64_t *address, CUresult *result) {
  int ordinal = gs_movable_wanted(wish->bytes) ? gs_current_device() : GS_NO_DEVICE;
  if (ordinal == GS_NO_DEVICE || !gs_mover_start() || !gs_movable_ready(ordinal))
    return false;
  wish->reserved.kind = GS_FIXED_KINDS;
  do
    *result = attempt(wish, ordinal, address);
  while (again(wish, *result));
  if (!wish->asked)
    *result = gs_no_room();
  return true;
}

bool gs_allocate_movable(uint64_t bytes, uint64_t *address, CUresult *result) {
  struct wish wish = {.bytes = bytes};
  return grant(&wish, address, result);
}

bool gs_allocate_movable_rows(struct gs_rows *rows, uint64_t *address, CUresult *result) {
  if (rows->width > ROW_MOST || rows->height > UINT64_MAX / 4 / ROW_MOST)
    return false;
  struct wish wish = {.rows = rows, .bytes = pitch_most(rows) * rows->height};
  return grant(&wish, address, result);
}

/* ---- frees ------------------------------------------------------------------------------------------------------- */

static void movable_gone(const void *record, void *with) {
  const struct gs_movable *movable = with;
  (void)record;
  gs_movable_end(movable->address, movable->number);
}

/* In the order of a stream, or while captures keep us from waiting for the device. */
struct later {
  const struct gs_movable *movable;
  const CUstream *stream;
};
static void movable_goes(const void *record, void *with) {
  const struct later *later = with;
  (void)record;
  gs_movable_end_later(later->movable->address, later->movable->number, later->stream);
}

/* Waits for all work of the current context. False: captures keep us from that. They may begin while an event is waited
 * for; before CUDA 12.5 there is none behind all work. */
static bool work_done(CUcontext context) {
  struct gs_time *time = gs_time();
  CUevent event = NULL;
  CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, recorded = CUDA_ERROR_NOT_SUPPORTED;
  bool may_look = !time || gs_captures_keep_off(time);
  if (may_look && gs_real_has(GS_INDEX_cuCtxRecordEvent) &&
      gs_real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
    recorded = gs_real.cuCtxRecordEvent(context, event);
  if (may_look && recorded != CUDA_SUCCESS && recorded != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    result = gs_real.cuCtxSynchronize();
  if (time)
    gs_captures_let(time);
  if (event) {
    int mode = gs_capture_mode_push();
    if (recorded == CUDA_SUCCESS)
      result = gs_real.cuEventSynchronize(event);
    gs_real.cuEventDestroy_v2(event);
    gs_capture_mode_pop(mode);
  }
  return result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Whether the driver lets memory go now, and all work that may use it is done. */
static bool unused_now(const struct gs_movable *movable) {
  CUcontext popped;
  if (movable->where == GS_ON_HOST)
    return true;
  if (gs_real.cuCtxPushCurrent_v2(movable->context) != CUDA_SUCCESS)
    return false;
  bool unused = work_done(movable->context);
  gs_real.cuCtxPopCurrent_v2(&popped);
  return unused;
}

/* The driver answers for the proxy whether the call is allowed. What is at the address is looked up once it is this
 * call's alone: another free may have taken what was there before, and another allocation got the address. */
CUresult gs_free_movable(uint64_t address, const CUstream *stream) {
  const struct gs_family pointers = {&gs_books()->pointers, &gs_books()->pointers_made, NULL};
  struct gs_leaving leaving;
  struct gs_allocation pointer;
  struct gs_movable movable;
  struct later later = {&movable, stream};
  if (!gs_life_leave(&pointers, &leaving, address, &pointer) || !gs_movable_find(address, &movable) ||
      movable.address != address) {
    gs_life_left(&pointers, &leaving, false, movable_gone, NULL);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = stream ? gs_real.cuMemFreeAsync(movable.proxy, *stream) : gs_real.cuMemFree_v2(movable.proxy);
  bool success = result == CUDA_SUCCESS;
  if (success && !stream && unused_now(&movable))
    gs_life_left(&pointers, &leaving, true, movable_gone, &movable);
  else
    gs_life_left(&pointers, &leaving, success, movable_goes, &later);
  if (success && !stream)
    gs_memory_synced(movable.ordinal);
  return result;
}
