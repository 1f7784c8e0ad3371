/* A query of a stream that is being captured, or of the legacy stream during such a capture, invalidates the capture.
 * So only streams that are not being captured are queried, and calls that begin a capture or draw a stream into one
 * wait for `reaping`, which is held here (capture.c). So do calls that end a stream or a context.
 *
 * Some streams cannot be queried: the per-thread default streams of other threads, and those that the program has
 * destroyed. For them an event behind everything in the context answers; recording it would invalidate any capture in
 * the context. Drivers before CUDA 12.5 have no such event: there the per-thread default streams are charged as
 * estimated. */
#include "interposer/time/marks/query.h"

#include "interposer/time/marks/bracket.h"
#include "interposer/time/marks/events.h"
#include "interposer/time/marks/inside.h"
#include "interposer/time/marks/residency.h"
#include "interposer/time/streams/active.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/streams/places.h"

bool gs_overdue(const struct gs_time_device *device, uint64_t now, uint64_t patience) {
  for (const struct gs_stream *stream = gs_active_first(device); stream; stream = gs_active_next(stream))
    if (__atomic_load_n(&stream->due, __ATOMIC_RELAXED) < now - patience)
      return true;
  return false;
}

static bool may_record_context(void) { return gs_real_has(GS_INDEX_cuCtxRecordEvent); }

/* Whether everything in the context was done at some time after the stream had this many launches. */
static CUresult ask_context(struct gs_stream *stream, uint64_t launches) {
  struct gs_context *context = stream->context;
  CUresult result = CUDA_ERROR_NOT_READY;
  if (context->asking)
    result = gs_real.cuEventQuery(context->asking);
  if (context->asking && result == CUDA_ERROR_NOT_READY)
    return result;
  if (context->asking) {
    gs_event_give(context, context->asking);
    context->asking = NULL;
    context->answers++;
  }
  if (result == CUDA_SUCCESS && stream->asked_launches == launches && stream->asked == context->answers)
    return CUDA_SUCCESS;
  CUevent event = gs_event_take(context);
  if (!event)
    return CUDA_ERROR_NOT_READY;
  if (gs_real.cuCtxRecordEvent(context->handle, event) != CUDA_SUCCESS) {
    gs_event_give(context, event);
    return CUDA_ERROR_NOT_READY;
  }
  context->asking = event;
  stream->asked_launches = launches;
  stream->asked = context->answers + 1;
  result = gs_real.cuEventQuery(event);
  if (result == CUDA_ERROR_NOT_READY)
    return result;
  gs_event_give(context, event);
  context->asking = NULL;
  context->answers++;
  return result;
}

static CUresult ask(struct gs_stream *stream, uint64_t launches) {
  struct gs_inside inside;
  CUresult result = CUDA_ERROR_NOT_READY;
  bool in = gs_inside_begin(&inside, stream->context);
  bool named = gs_stream_nameable(stream) && !gs_stream_retired(stream);
  if (in && named && gs_capture_may_ask(stream->handle))
    result = gs_real.cuStreamQuery(stream->handle);
  else if (in && !named && may_record_context() && __atomic_load_n(&gs_time()->captures, __ATOMIC_SEQ_CST) == 0)
    result = ask_context(stream, launches);
  else if (!named && !may_record_context() && !gs_stream_retired(stream))
    result = CUDA_SUCCESS;
  gs_inside_end(&inside);
  return result;
}

/* What it shows is not charged by estimate as well. Under `reaping`. */
static void take_bracket(struct gs_stream *stream) {
  struct gs_inside inside;
  gs_inside_begin(&inside, NULL);
  gs_bracket_take(stream);
  gs_inside_end(&inside);
}

/* Under `reaping`. */
static void query(struct gs_stream *stream, uint64_t patience) {
  struct gs_time_device *device = stream->device;
  struct gs_queue *queue = &stream->queue;
  uint64_t launches, now = gs_now();
  bool overdue, awaits;
  gs_biased_take(&device->lock);
  gs_repeat_absorb(stream);
  launches = gs_stream_launches(stream);
  awaits = gs_stream_awaits(stream);
  /* marks in flight prove more, and exactly when */
  overdue =
      gs_stream_may_run(stream) && queue->head == queue->tail && (stream->unobserved || queue->end + patience < now);
  gs_biased_drop(&device->lock);
  if (!overdue)
    return;
  CUresult result = gs_repeat_known_done(stream) ? CUDA_SUCCESS : ask(stream, launches);
  if (result != CUDA_ERROR_NOT_READY)
    take_bracket(stream);
  gs_biased_take(&device->lock);
  now = gs_now();
  if (gs_stream_launches(stream) == launches && queue->head == queue->tail) {
    if (result == CUDA_ERROR_NOT_READY)
      gs_unobserved_begin(stream, queue->end < now ? queue->end : now);
    else if (gs_repeat_known_done(stream) && !stream->queue.sampled)
      gs_book_short_wait(stream, now);
    else if (!awaits) /* an error is that of a context in which nothing runs any more */
      gs_found_idle(stream, stream->unobserved || queue->end > now ? now : queue->end, (struct gs_waited){0});
  }
  gs_biased_drop(&device->lock);
}

bool gs_stream_queried_idle(struct gs_stream *stream) {
  struct gs_time_device *device = gs_stream_home(stream);
  if (gs_time()->profiled)
    return true;
  gs_latch_take(&device->reaping);
  bool idle = gs_stream_askable(stream, device) && ask(stream, gs_stream_launches(stream)) != CUDA_ERROR_NOT_READY;
  gs_latch_drop(&device->reaping);
  return idle;
}

void gs_query_streams(struct gs_time_device *device, uint64_t patience) {
  if (gs_time()->profiled || !gs_latch_try(&device->reaping))
    return;
  for (struct gs_stream *stream = gs_active_first(device), *next; stream; stream = next) {
    next = gs_active_next(stream);
    if (gs_stream_askable(stream, device))
      query(stream, patience);
  }
  gs_latch_drop(&device->reaping);
}
