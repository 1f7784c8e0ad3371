#include "interposer/time/marks/contexts.h"

#include "interposer/process/greens.h"
#include "interposer/time/marks/marks.h"
#include "interposer/time/streams/active.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/streams/streams.h"

static void new_generation(struct gs_time *time) {
  __atomic_add_fetch(&time->generation, 1, __ATOMIC_RELEASE);
  gs_repeat_end(time);
}

void gs_stream_ending(CUstream handle) {
  struct gs_time *time = gs_time();
  struct gs_stream *stream = gs_stream_known(handle);
  if (!stream || !stream->context || gs_stream_is_default(stream->handle))
    return;
  /* once retired and reaped, by any thread, the place may hold another stream */
  struct gs_time_device *device = stream->device;
  if (gs_stream_open(stream) && !gs_stream_capturing(handle))
    gs_mark_record(stream, false);
  gs_latch_take(&device->reaping); /* waits for a thread that queries the stream */
  gs_latch_take(&time->tables);
  __atomic_store_n(&stream->retired, true, __ATOMIC_RELEASE);
  new_generation(time);
  gs_latch_drop(&time->tables);
  gs_biased_take(&device->lock);
  gs_active_add(stream); /* the thread that reaps it frees its place */
  gs_biased_drop(&device->lock);
  gs_latch_drop(&device->reaping);
  gs_reap(device);
}

/* Under `tables`. */
static bool part_of(const struct gs_context *context, CUcontext handle) {
  return context->handle && (context->handle == handle || gs_context_owner(context->handle) == handle);
}

static void forget(struct gs_time *time, struct gs_context *context) {
  (void)time;
  gs_context_forget(context);
}

static void ending(struct gs_time *time, struct gs_context *context) {
  __atomic_add_fetch(&context->ending, 1, __ATOMIC_RELAXED);
  context->ending_since = gs_now();
  __atomic_add_fetch(&time->ending, 1, __ATOMIC_RELEASE);
}

static void lives(struct gs_time *time, struct gs_context *context) {
  if (context->ending == 0)
    return; /* the context was added meanwhile */
  __atomic_sub_fetch(&context->ending, 1, __ATOMIC_RELAXED);
  __atomic_sub_fetch(&time->ending, 1, __ATOMIC_RELEASE);
}

static void for_parts(CUcontext handle, int ordinal, void (*act)(struct gs_time *time, struct gs_context *context)) {
  struct gs_time *time = gs_time();
  struct gs_time_device *device;
  if (!time || ordinal < 0 || ordinal >= GS_MAX_DEVICES)
    return;
  device = &time->device[ordinal];
  gs_latch_take(&device->reaping);
  gs_latch_take(&time->tables);
  for (struct gs_context *context = time->contexts; context; context = context->next)
    if (part_of(context, handle))
      act(time, context);
  if (act == forget)
    gs_captures_gone(handle);
  new_generation(time);
  gs_latch_drop(&time->tables);
  gs_latch_drop(&device->reaping);
}

void gs_time_context_ending(CUcontext handle, int ordinal) {
  if (gs_time() && ordinal >= 0 && ordinal < GS_MAX_DEVICES)
    gs_reap(&gs_time()->device[ordinal]);
  for_parts(handle, ordinal, ending);
}

void gs_time_context_lives(CUcontext handle, int ordinal) { for_parts(handle, ordinal, lives); }

void gs_time_context_gone(CUcontext handle, int ordinal) { for_parts(handle, ordinal, forget); }
