#include "interposer/time/streams/streams.h"

#include <errno.h>
#include <string.h>

#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/time/create.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/places.h"
#include "interposer/time/streams/repeat.h"

/* Streams that a thread used last, by handle. Valid as long as no stream or context ends. */
GS_TLS struct gs_cached {
  CUstream handle;
  CUcontext context; /* for the default streams, whose handle does not identify them; else NULL */
  uint32_t generation;
  struct gs_stream *stream;
} cache[8];

static struct gs_cached *cached_place(CUstream handle) {
  return &cache[(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> 61];
}

static CUcontext current_context(void) {
  CUcontext context = NULL;
  return gs_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

/* Under `tables`. There is no memory for a stream's books: the device's time is charged by residency from now on. */
static struct gs_stream *rest_of(struct gs_time_device *device) {
  static uint32_t reported;
  if (!__atomic_exchange_n(&reported, 1, __ATOMIC_RELAXED))
    gs_say("no memory for the books of one more stream: device time is charged by residency from now on");
  return device->rest;
}

/* Under `tables`; the stream's context is current. */
static struct gs_stream *add(struct gs_time *time, CUstream handle, CUcontext context, uint64_t thread) {
  struct gs_context *owner = gs_context_known(time, context);
  int ordinal = owner ? owner->ordinal : gs_context_device(context);
  struct gs_time_device *device = ordinal == GS_NO_DEVICE ? NULL : &time->device[ordinal];
  struct gs_stream *stream;
  unsigned int flags = 0;
  if (!device || !device->meter)
    return NULL;
  if (!owner)
    owner = gs_context_place(time, context, ordinal);
  stream = owner ? gs_place_take(time, handle, thread) : NULL;
  if (!stream)
    return rest_of(device);
  /* waits.c walks over streams without a latch, possibly while this one ends and its place is reused */
  __atomic_store_n(&stream->handle, handle, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->context, owner, __ATOMIC_RELAXED);
  stream->thread = thread;
  __atomic_store_n(&stream->device, device, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->retired, false, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->refused, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->due, UINT64_MAX, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->unobserved, 0, __ATOMIC_RELAXED);
  memset(stream->bracket, 0, sizeof stream->bracket);
  bool blocking = handle != CU_STREAM_PER_THREAD;
  if (!gs_stream_is_default(handle) && gs_real.cuStreamGetFlags(handle, &flags) == CUDA_SUCCESS)
    blocking = !(flags & CU_STREAM_NON_BLOCKING);
  __atomic_store_n(&stream->blocking, blocking, __ATOMIC_RELAXED);
  memset(&stream->queue, 0, sizeof stream->queue);
  stream->queue.unclocked = !__atomic_load_n(&owner->base, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->repeater, NULL, __ATOMIC_RELAXED);
  stream->absorbed = __atomic_load_n(&stream->repeated, __ATOMIC_RELAXED);
  stream->booked = stream->booked_launches = stream->done_launches = 0;
  stream->polled_launches = stream->waited_launches = stream->newest = stream->held_launches = 0;
  __atomic_store_n(&stream->live, true, __ATOMIC_RELEASE);
  return stream;
}

/* A launch may name a stream of a context that is not current. */
CUcontext gs_context_behind(CUstream handle, CUcontext current) {
  CUcontext context = NULL;
  CUresult result;
  if (gs_stream_is_default(handle))
    return current;
  result = gs_real.cuStreamGetCtx(handle, &context);
  if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT ||
      result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
    return NULL;
  return result == CUDA_SUCCESS && context ? context : current;
}

static struct gs_stream *make(struct gs_time *time, CUstream handle, CUcontext current) {
  int saved = errno, previous = gs_capture_mode_push();
  CUcontext context = gs_context_behind(handle, current), popped;
  bool pushed = context && context != current && gs_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  struct gs_stream *stream = NULL;
  if (context && (context == current || pushed)) {
    gs_time_create(gs_context_device(context)); /* there is a gs_time: see look_up */
    gs_latch_take(&time->tables);
    stream = gs_place_find(time, handle, context, gs_stream_thread(handle));
    if (!stream)
      stream = add(time, handle, context, gs_stream_thread(handle));
    gs_latch_drop(&time->tables);
  }
  if (pushed)
    gs_real.cuCtxPopCurrent_v2(&popped);
  gs_capture_mode_pop(previous);
  errno = saved;
  return stream;
}

/* A stream that is not in this thread's cache. Out of line, so that other launches do not save the registers that this
 * path uses. */
static __attribute__((noinline)) struct gs_stream *look_further(CUstream handle, CUcontext current, uint32_t generation,
                                                                bool may_make) {
  struct gs_time *time = gs_time();
  struct gs_stream *stream;
  bool ending = __atomic_load_n(&time->ending, __ATOMIC_ACQUIRE) > 0;
  if (ending && !current) {
    int previous = gs_capture_mode_push();
    current = gs_context_behind(handle, NULL);
    gs_capture_mode_pop(previous);
    if (!current)
      return NULL;
  }
  gs_latch_take(&time->tables);
  stream = gs_place_find(time, handle, current, gs_stream_thread(handle));
  gs_latch_drop(&time->tables);
  /* the thread may have no context: the stream's own is what counts */
  if (!stream && may_make)
    stream = make(time, handle, gs_stream_is_default(handle) ? current : current_context());
  if (stream && stream->context && !ending)
    *cached_place(handle) = (struct gs_cached){handle, current, generation, stream};
  return stream;
}

static inline struct gs_stream *look_up(CUstream handle, bool may_make) {
  struct gs_time *time = gs_time();
  CUcontext current = NULL;
  struct gs_cached *cached;
  uint32_t generation;
  if (!time)
    return NULL;
  if (!handle)
    handle = CU_STREAM_LEGACY;
  cached = cached_place(handle);
  if (gs_stream_is_default(handle))
    current = current_context();
  generation = __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE);
  if (GS_LIKELY(cached->generation == generation && cached->handle == handle && cached->context == current))
    return cached->stream;
  return look_further(handle, current, generation, may_make);
}

struct gs_stream *gs_stream_of(CUstream handle) { return look_up(handle, true); }
struct gs_stream *gs_stream_known(CUstream handle) { return look_up(handle, false); }

CUcontext gs_stream_owner(CUstream stream) {
  CUcontext context = NULL;
  struct gs_stream *known;
  if (gs_stream_is_default(stream))
    return gs_owner_current();
  known = gs_stream_known(stream);
  if (known && known->context)
    return gs_context_owner(known->context->handle);
  return gs_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS ? gs_context_owner(context) : NULL;
}
