/* Brackets of launches.
 *
 * On an idle stream the device reaches the first event at once, and the time between the two is that of the host's
 * calls where these take longer than the kernel. So the device is kept from reaching the first event until the second
 * one is recorded: by memory barriers, which need no memory, occupy no multiprocessor, and end even if this process
 * dies. How long they take is not documented, so each bracket checks whether they took long enough, and their number is
 * adjusted. */
#include "interposer/time/marks/bracket.h"

#include "interposer/time/lease.h"
#include "interposer/time/marks/events.h"
#include "interposer/time/marks/inside.h"
#include "interposer/time/streams/places.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/thread.h"

enum {
  NS_PER_MS = 1000000,
  /* Number of barriers, in sixteenths. It grows by four where they were too few, and shrinks by a sixteenth where they
   * were enough, so that one bracket in 65 is not held. */
  BARRIER = 16,
  BARRIERS_FIRST = 16 * BARRIER,
  BARRIERS_MOST = 64 * BARRIER,
  GROWTH = 4 * BARRIER,
  /* The time between two events includes the device's time for one event. That is measured this many times, between two
   * events with nothing between them. A longer result than LONGEST_NS had other work between. */
  MEASURED = 8,
  LONGEST_NS = 5000,
  /* So many brackets of a context begin with an event that nothing is in front of, on an idle stream: the device's clock
   * is known as exactly as an event is recorded, unless the thread has lost its processor meanwhile. */
  CLOCKED = 8,
  AROUND_NS = 100000 /* a process with work this long before a bracket may have been in its way */
};
enum { FIRST, SECOND, EMPTY, EARLY };       /* of a stream's bracket */
static const uint32_t refused = UINT32_MAX; /* the driver has no barriers */

static CUstreamBatchMemOpParams barriers[BARRIERS_MOST / BARRIER] = {
    [0 ... BARRIERS_MOST / BARRIER - 1] = {.operation = CU_STREAM_MEM_OP_BARRIER}};

static void hold_stream(struct gs_stream *stream) {
  uint32_t *number = &stream->device->barriers, n = __atomic_load_n(number, __ATOMIC_RELAXED);
  if (n == refused)
    return;
  if (n == 0)
    __atomic_store_n(number, n = BARRIERS_FIRST, __ATOMIC_RELAXED);
  CUresult result = gs_real.cuStreamBatchMemOp_v2(stream->handle, n / BARRIER, barriers, 0);
  /* any other error concerns only this stream or this moment, such as a capture that does not allow it */
  if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_FOUND)
    __atomic_store_n(number, refused, __ATOMIC_RELAXED);
}

/* Threads of several streams may write at the same time; then one of the changes is lost. */
static void count_hold(struct gs_time_device *device, bool held) {
  uint32_t n = __atomic_load_n(&device->barriers, __ATOMIC_RELAXED);
  if (n == refused)
    return;
  n = held ? n - (n > BARRIER) : n + GROWTH < BARRIERS_MOST ? n + GROWTH : BARRIERS_MOST;
  __atomic_store_n(&device->barriers, n, __ATOMIC_RELAXED);
}

static bool measured(const struct gs_time_device *device) {
  return __atomic_load_n(&device->events, __ATOMIC_RELAXED) == MEASURED;
}

static bool record(struct gs_stream *stream, int which) {
  if (!stream->bracket[which])
    stream->bracket[which] = gs_event_take(stream->context);
  return stream->bracket[which] && gs_real.cuEventRecord(stream->bracket[which], stream->handle) == CUDA_SUCCESS;
}

bool gs_bracket_begin(struct gs_stream *stream, bool hold, uint64_t *began) {
  struct gs_inside inside;
  bool done = false;
  if (gs_called_back || !gs_stream_nameable(stream))
    return false;
  if (gs_inside_begin(&inside, stream->context)) {
    stream->bracket_early =
        __atomic_load_n(&stream->context->clocked, __ATOMIC_RELAXED) < CLOCKED && record(stream, EARLY);
    if (hold)
      hold_stream(stream);
    stream->bracket_empty = hold && !measured(stream->device) && record(stream, EMPTY);
    done = record(stream, FIRST);
  }
  *began = gs_now();
  gs_inside_end(&inside);
  return done;
}

bool gs_bracket_end(struct gs_stream *stream, bool hold, uint64_t *closed, enum gs_held *held) {
  struct gs_inside inside;
  bool done = gs_inside_begin(&inside, stream->context) && record(stream, SECOND);
  *closed = gs_now();
  bool waits =
      done && gs_real.cuEventQuery(stream->bracket[stream->bracket_empty ? EMPTY : FIRST]) == CUDA_ERROR_NOT_READY;
  if (hold && done)
    count_hold(stream->device, waits);
  *held = waits                                                                             ? GS_HELD
          : hold && __atomic_load_n(&stream->device->barriers, __ATOMIC_RELAXED) != refused ? GS_HELD_BRIEFLY
                                                                                            : GS_NOT_HELD;
  gs_inside_end(&inside);
  return done;
}

/* When the event was reached, which was not before `least`; 0: not known. Called with the device's `reaping` held. */
static uint64_t host_time(struct gs_context *context, CUevent event, uint64_t least) {
  float ms;
  if (!context->base || gs_real.cuEventElapsedTime(&ms, context->base, event) != CUDA_SUCCESS)
    return 0;
  uint64_t time = context->base_time + (uint64_t)(int64_t)((double)ms * NS_PER_MS);
  gs_clock_not_before(&context->clock, time, least);
  return gs_clock_host(&context->clock, time);
}

static void measure_event(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  float ms;
  if (measured(device) ||
      gs_real.cuEventElapsedTime(&ms, stream->bracket[EMPTY], stream->bracket[FIRST]) != CUDA_SUCCESS ||
      (double)ms * NS_PER_MS > LONGEST_NS)
    return;
  device->events_ns += (double)ms * NS_PER_MS;
  __atomic_store_n(&device->events, device->events + 1, __ATOMIC_RELAXED);
}

static double event_ns(const struct gs_time_device *device) {
  return device->events > 0 ? device->events_ns / device->events : 0;
}

void gs_bracket_take(struct gs_stream *stream) {
  struct gs_time_device *device = stream->device;
  CUresult result;
  float ms = 0;
  enum gs_held held;
  if (!__atomic_load_n(&stream->queue.sampled, __ATOMIC_ACQUIRE))
    return;
  held = stream->queue.sampled_held;
  result = gs_real.cuEventQuery(stream->bracket[SECOND]);
  if (result == CUDA_ERROR_NOT_READY)
    return;
  if (result == CUDA_SUCCESS)
    result = gs_real.cuEventElapsedTime(&ms, stream->bracket[FIRST], stream->bracket[SECOND]);
  if (held == GS_HELD && stream->bracket_empty)
    measure_event(stream);
  double took = (double)ms * NS_PER_MS - (held != GS_NOT_HELD ? event_ns(device) : 0);
  uint32_t residents = gs_slots_active(device, gs_now(), gs_now() - stream->queue.sampled_from + AROUND_NS);
  if (stream->bracket_early && host_time(stream->context, stream->bracket[EARLY], stream->queue.sampled_from))
    __atomic_store_n(&stream->context->clocked, stream->context->clocked + 1, __ATOMIC_RELAXED);
  uint64_t begun = host_time(stream->context, stream->bracket[FIRST],
                             held == GS_HELD ? stream->queue.sampled_closed : stream->queue.sampled_from);
  gs_repeat_absorb_all(device);
  gs_biased_take(&device->lock);
  device->meter->event_ns = event_ns(device);
  if (result == CUDA_SUCCESS)
    gs_meter_sampled(device->meter, &stream->queue, took, begun, residents);
  else
    __atomic_store_n(&stream->queue.sampled, NULL, __ATOMIC_RELEASE);
  gs_biased_drop(&device->lock);
}

void gs_bracket_free(struct gs_stream *stream) {
  for (int i = 0; i < GS_BRACKET_EVENTS; i++) {
    if (stream->bracket[i])
      gs_event_give(stream->context, stream->bracket[i]);
    stream->bracket[i] = NULL;
  }
}
