#include "interposer/time/streams/repeat.h"

#include "interposer/time/streams/active.h"

__thread struct gs_repeat gs_repeats[8] __attribute__((tls_model("initial-exec"), visibility("hidden")));

void gs_repeat_from(struct gs_stream *stream, struct gs_function *function, CUstream handle, uint32_t lease,
                    double room, uint64_t tick, uint64_t now) {
  struct gs_time *time = gs_time();
  struct gs_repeat *repeat = gs_repeat_of(handle);
  uint64_t key = gs_passage() ? ~function->key : function->key;
  bool again = repeat->key == key && repeat->stream == stream && repeat->handle == stream->handle;
  uint64_t launches = gs_stream_launches(stream), gone = now - stream->booked,
           since = launches - stream->booked_launches;
  stream->booked_launches = launches;
  stream->booked = now;
  __atomic_store_n(&stream->repeater, NULL, __ATOMIC_RELAXED);
  repeat->key = key;
  repeat->stream = stream;
  repeat->handle = stream->handle;
  repeat->context = gs_stream_is_default(handle) && stream->context ? stream->context->handle : NULL;
  repeat->left = 0;
  if (!again || gs_function_unknown(function))
    return;
  repeat->lease_word = &stream->device->limits->lease;
  repeat->lease = lease;
  repeat->soon = function->estimate < GS_REPEAT_SHORT_NS
                     ? 0
                     : tick + stream->device->ticks.within / (GS_TICKS_BELIEVED_NS / GS_REPEAT_NS);
  repeat->until = tick + stream->device->ticks.within / (GS_TICKS_BELIEVED_NS / GS_REPEAT_WITHIN_NS);
  repeat->short_wait =
      (uint64_t)(gs_repeat_short_wait(function) * (double)stream->device->ticks.within / GS_TICKS_BELIEVED_NS);
  repeat->repeats_word = &time->repeats;
  /* `repeats` before `captures`: a capture that begins now changes the words in the opposite order. */
  repeat->repeats = __atomic_load_n(&time->repeats, __ATOMIC_ACQUIRE);
  if (__atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) > 0)
    return;
  if (gs_passage() && !(repeat->inside = gs_launch_word()))
    return;
  repeat->left = gs_repeats_after(stream->device->meter, &stream->queue, function, (double)gone / (double)since, room);
  stream->repeats = function;
  stream->repeats_key = function->key;
  __atomic_store_n(&stream->repeater, repeat, __ATOMIC_RELAXED);
}

void gs_repeat_absorb_slow(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  uint64_t n = gs_repeat_pending(stream);
  __atomic_store_n(&stream->absorbed, stream->absorbed + n, __ATOMIC_RELAXED);
  stream->newest = device->waits;
  gs_meter_repeated(device->meter, &stream->queue, stream->repeats, stream->repeats_key, (uint32_t)n);
  __atomic_store_n(&device->slot->launches, device->slot->launches + n, __ATOMIC_RELAXED);
}

uint64_t gs_repeat_waited_at(struct gs_stream *stream, uint64_t now) {
  const struct gs_ticks *ticks = &stream->device->ticks;
  uint64_t tick = __atomic_load_n(&stream->waited_tick, __ATOMIC_RELAXED), gone = gs_ticks_read() - tick;
  gone = ticks->within > 0 ? gone * (ticks->scale >> 10) >> 22 : 0;
  __atomic_store_n(&stream->waited_launches, 0, __ATOMIC_RELAXED);
  return gone > 0 && gone < now && now - gone >= stream->queue.planned ? now - gone : 0;
}

void gs_repeat_late(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  gs_biased_take(&device->lock);
  if (stream->live && gs_repeat_pending(stream) > 0) {
    gs_repeat_absorb(stream);
    gs_active_add(stream);
    gs_not_idle(gs_time(), device);
    __atomic_store_n(&stream->due, stream->queue.end, __ATOMIC_RELAXED);
  }
  gs_biased_drop(&device->lock);
}

void gs_repeat_absorb_all(struct gs_time_device *device) {
  gs_biased_take(&device->lock);
  for (struct gs_stream *stream = device->active; stream; stream = stream->next)
    gs_repeat_absorb(stream);
  gs_biased_drop(&device->lock);
}

bool gs_stream_open(struct gs_stream *stream) {
  bool open;
  gs_biased_take(&stream->device->lock);
  gs_repeat_absorb(stream);
  open = stream->queue.open.launches > 0;
  gs_biased_drop(&stream->device->lock);
  return open;
}
