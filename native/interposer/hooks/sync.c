/* Where the program learns that work is done, the meter does too. */
#include "interposer/hooks/sync.h"

/* The program is about to wait for a stream: the last chance to have its end measured by the device. */
void gs_before_wait(struct gs_stream *stream) {
  bool check;
  if (!stream || gs_time()->profiled)
    return;
  gs_biased_take(&stream->device->lock);
  gs_repeat_absorb(stream);
  check = gs_meter_check_before_sync(&stream->queue, gs_ticks_at(&stream->device->ticks, gs_ticks_read()));
  gs_biased_drop(&stream->device->lock);
  if (check && !gs_stream_capturing(stream->handle))
    gs_mark_record(stream, false);
}

static void residency_ends(struct gs_time_device *device) {
  uint64_t now = gs_now();
  gs_biased_take(&device->lock);
  if (device->resident && now > device->resident_since)
    device->meter->busy += (double)(now - device->resident_since);
  device->resident = false;
  gs_publish(device, now);
  gs_biased_drop(&device->lock);
}

static void done_where(bool (*matches)(const struct gs_stream *stream, const void *what), const void *what) {
  struct gs_time *time = gs_time();
  uint32_t streams = __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < streams; i++) {
    struct gs_stream *stream = time->stream[i];
    if (stream && gs_stream_live(stream) && !gs_stream_retired(stream) && matches(stream, what))
      gs_stream_done(stream);
  }
}

static bool blocking_beside(const struct gs_stream *stream, const void *legacy) {
  return stream == legacy || (__atomic_load_n(&stream->blocking, __ATOMIC_RELAXED) &&
                              stream->context == ((const struct gs_stream *)legacy)->context);
}

static bool of_context(const struct gs_stream *stream, const void *context) {
  const struct gs_context *owner = __atomic_load_n(&stream->context, __ATOMIC_RELAXED);
  return __atomic_load_n(&owner->handle, __ATOMIC_RELAXED) == context;
}

/* Work in the legacy stream comes after all that was before it in the blocking streams of its context. */
void gs_stream_done_with_others(struct gs_stream *stream) {
  if (gs_time()->profiled)
    residency_ends(stream->device);
  else if (stream->handle == CU_STREAM_LEGACY)
    done_where(blocking_beside, stream);
  else
    gs_stream_done(stream);
  gs_memory_synced(stream->device->ordinal);
}

CUresult gs_before_sync_stream(struct gs_around_sync_stream *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->stream = NULL;
  around->repeat = gs_repeat_wait(stream);
  if (around->repeat)
    return CUDA_SUCCESS;
  around->active = gs_enter(&result);
  if (!around->active)
    return result;
  around->handle = stream;
  around->stream = gs_stream_known(stream);
  gs_before_wait(around->stream);
  return CUDA_SUCCESS;
}

CUresult gs_after_sync_stream(struct gs_around_sync_stream *around, CUresult result) {
  if (result != CUDA_SUCCESS)
    return result;
  if (around->repeat) {
    if (GS_LIKELY(gs_repeat_waited(around->repeat)))
      gs_memory_synced(around->repeat->stream->device->ordinal);
    else
      gs_stream_done_with_others(around->repeat->stream);
    return result;
  }
  if (!around->active)
    return result;
  if (around->stream) {
    gs_stream_done_with_others(around->stream);
  } else {
    int ordinal = gs_stream_device(around->handle);
    if (ordinal != GS_NO_DEVICE)
      gs_memory_synced(ordinal);
  }
  return result;
}

CUresult gs_before_query_stream(struct gs_around_query_stream *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->stream = gs_enter(&result) ? gs_stream_known(stream) : NULL;
  return result;
}

CUresult gs_after_query_stream(struct gs_around_query_stream *around, CUresult result) {
  if (result == CUDA_SUCCESS && around->stream)
    gs_stream_done_with_others(around->stream);
  return result;
}

CUresult gs_before_sync_context(struct gs_around_sync_context *around, CUcontext context) {
  CUresult result = CUDA_SUCCESS;
  struct gs_time *time;
  around->context = NULL;
  if (!gs_enter(&result))
    return result;
  if (!context && gs_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    context = NULL;
  around->context = context;
  time = gs_time();
  for (uint32_t i = 0; time && i < __atomic_load_n(&time->streams, __ATOMIC_ACQUIRE); i++) {
    struct gs_stream *stream = time->stream[i];
    /* Another thread's default stream cannot be named from here. */
    if (stream && gs_stream_live(stream) && !gs_stream_retired(stream) && of_context(stream, context) &&
        __atomic_load_n(&stream->handle, __ATOMIC_RELAXED) != CU_STREAM_PER_THREAD)
      gs_before_wait(stream);
  }
  return CUDA_SUCCESS;
}

CUresult gs_after_sync_context(struct gs_around_sync_context *around, CUresult result) {
  int ordinal;
  if (result != CUDA_SUCCESS || !around->context)
    return result;
  ordinal = gs_context_device(around->context);
  if (ordinal == GS_NO_DEVICE)
    return result;
  if (gs_time() && gs_time()->profiled && gs_time()->device[ordinal].meter)
    residency_ends(&gs_time()->device[ordinal]);
  else if (gs_time())
    done_where(of_context, around->context);
  gs_memory_synced(ordinal);
  return result;
}

/* ---- events of the program ---- */

static struct gs_recorded *place_of(struct gs_time *time, CUevent event) {
  return &time->recorded[((uintptr_t)event >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 56 & (GS_TIME_RECORDED - 1)];
}

CUresult gs_before_event_record(struct gs_around_event_record *around, CUevent event, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->event = event;
  around->stream = gs_enter(&result) ? gs_stream_known(stream) : NULL;
  return result;
}

CUresult gs_after_event_record(struct gs_around_event_record *around, CUresult result) {
  struct gs_time *time = gs_time();
  struct gs_recorded *place;
  if (result != CUDA_SUCCESS || !time)
    return result;
  place = place_of(time, around->event);
  gs_latch_take(&time->recorded_lock);
  if (around->stream)
    *place = (struct gs_recorded){around->event, around->stream, __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE),
                                  gs_stream_launches(around->stream)};
  else if (place->event == around->event)
    place->event = NULL;
  gs_latch_drop(&time->recorded_lock);
  return result;
}

/* The stream that is empty if the event is done and nothing was given to it since; NULL when that is not known. */
static struct gs_stream *emptied_by(CUevent event) {
  struct gs_time *time = gs_time();
  struct gs_stream *stream = NULL;
  struct gs_recorded *place;
  if (!time)
    return NULL;
  place = place_of(time, event);
  gs_latch_take(&time->recorded_lock);
  if (place->event == event && place->generation == __atomic_load_n(&time->generation, __ATOMIC_ACQUIRE) &&
      place->launches == gs_stream_launches(place->stream))
    stream = place->stream;
  gs_latch_drop(&time->recorded_lock);
  return stream;
}

CUresult gs_before_event_wait(struct gs_around_event_wait *around, CUevent event) {
  CUresult result = CUDA_SUCCESS;
  around->event = event;
  around->stream = gs_enter(&result) ? emptied_by(event) : NULL;
  if (around->stream)
    gs_before_wait(around->stream);
  return result;
}

CUresult gs_before_event_query(struct gs_around_event_query *around, CUevent event) {
  CUresult result = CUDA_SUCCESS;
  around->event = event;
  around->stream = gs_enter(&result) ? emptied_by(event) : NULL;
  return result;
}

/* emptied: what emptied_by said before the call. Asked again: another thread may have given the stream work while this
 * one waited. */
static void event_done(CUevent event, struct gs_stream *emptied) {
  if (emptied && emptied_by(event) == emptied)
    gs_stream_done_with_others(emptied);
}

CUresult gs_after_event_wait(struct gs_around_event_wait *around, CUresult result) {
  if (result == CUDA_SUCCESS)
    event_done(around->event, around->stream);
  for (uint32_t i = 0; i < gs_process->ndevices && result == CUDA_SUCCESS; i++)
    gs_memory_synced((int)i); /* of whichever device the event is: drivers shrink pools when somebody waits */
  return result;
}

CUresult gs_after_event_query(struct gs_around_event_query *around, CUresult result) {
  if (result == CUDA_SUCCESS)
    event_done(around->event, around->stream);
  return result;
}

CUresult gs_before_event_gone(CUevent event) {
  struct gs_time *time = gs_time();
  CUresult result = CUDA_SUCCESS;
  if (gs_enter(&result) && time) {
    struct gs_recorded *place = place_of(time, event);
    gs_latch_take(&time->recorded_lock);
    if (place->event == event)
      place->event = NULL;
    gs_latch_drop(&time->recorded_lock);
  }
  return result;
}
