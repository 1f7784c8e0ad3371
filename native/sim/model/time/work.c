/* Appending work, waiting for it, and the worker thread that advances the model while the program makes no calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "page/gs_clock.h"
#include "sim/model/model.h"

enum {
  WAKE_EARLY_NS = 70000, /* with the default timer slack a thread wakes up to this late; the remainder is spun */
  BLIND_NS = 5000000,    /* maximum sleep if the time of the next event is unknown */
  POLL_VALUE_NS = 50000  /* interval at which memory of a value wait is polled */
};

/* The caller checks again after an early return. */
static void sleep_until(uint64_t when) { gs_clock_sleep(when + (uint64_t)sim_ahead()); }

static void pause_until(const struct sim_device *device, uint32_t word, uint64_t when, bool blocking) {
  uint64_t now = sim_now();
  if (when == SIM_NEVER)
    sim_lane_wait(device, word, BLIND_NS);
  else if (blocking && when > now)
    sleep_until(when);
  else if (when > now + WAKE_EARLY_NS)
    sleep_until(when - WAKE_EARLY_NS);
  else
    while (sim_now() < when)
      sim_pause();
}

void sim_wait(CUdevice index, bool blocking, const struct sim_condition *condition) {
  struct sim_device *device = &sim_devices[index];
  for (;;) {
    sim_lock();
    uint32_t word = sim_lane_word(device);
    uint64_t now = sim_now(), when = 0;
    sim_advance(now);
    bool done = condition->done(condition->arg);
    if (!done)
      when = condition->bound(condition->arg, now);
    if (!done && when <= now)
      when = sim_next_event();
    sim_unlock();
    if (done)
      return;
    pause_until(device, word, when, blocking);
  }
}

/* ---- waiting for a stream ---------------------------------------------------------------------------------------- */

struct target {
  const struct sim_stream *stream;
  uint64_t seq, compute_sum, copy_sum;
};

static bool target_done(const void *arg) {
  const struct target *target = arg;
  return sim_stream_done(target->stream, target->seq);
}

static uint64_t target_bound(const void *arg, uint64_t now) {
  const struct target *target = arg;
  return sim_bound(target->stream, target->compute_sum, target->copy_sum, now, 4);
}

static bool blocking_waits(const struct sim_ctx *ctx) {
  return (ctx->flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
}

void sim_wait_seq(struct sim_stream *stream, uint64_t seq) {
  sim_lock();
  struct target target = {stream, seq, stream->compute_sum, stream->copy_sum};
  for (const struct sim_item *item = stream->head; item && item->seq <= seq; item = item->next) {
    target.compute_sum = item->compute_sum;
    target.copy_sum = item->copy_sum;
  }
  CUdevice device = stream->ctx->device;
  bool blocking = blocking_waits(stream->ctx);
  sim_unlock();
  sim_wait(device, blocking, &(struct sim_condition){target_done, target_bound, &target});
}

static bool has_room(const void *arg) {
  const struct sim_stream *stream = arg;
  return stream->depth < sim_hello.queue_depth;
}

static uint64_t head_bound(const void *arg, uint64_t now) {
  const struct sim_stream *stream = arg;
  return stream->head ? sim_bound(stream, stream->head->compute_sum, stream->head->copy_sum, now, 4) : now;
}

/* ---- appending --------------------------------------------------------------------------------------------------- */

static void attend(struct sim_item *item) {
  if (item->attended)
    return;
  item->attended = true;
  item->stream->attended++;
  sim_attended(item->stream->ctx->device, 1);
  sim_worker_need(item->stream->ctx->device);
}

static uint64_t append(struct sim_item *item, uint64_t now) {
  sim_item_push(item);
  uint64_t seq = item->seq;
  sim_settle(now); /* may already complete and free the item */
  return seq;
}

uint64_t sim_enqueue(struct sim_stream *stream, const struct sim_op *op, bool waited, bool counted) {
  uint64_t now = sim_now();
  sim_advance(now);
  while (counted && !has_room(stream)) {
    struct sim_condition room = {has_room, head_bound, stream};
    CUdevice device = stream->ctx->device;
    sim_unlock();
    sim_wait(device, false, &room);
    sim_lock();
    now = sim_now();
    sim_advance(now);
  }
  struct sim_item *item = sim_item_new(stream, op->resource, op->duration_ns, op->payload_bytes);
  if (item == NULL)
    return 0;
  item->run = op->run;
  item->ready = op->ready;
  item->bytes = op->bytes;
  item->pageable = op->pageable;
  item->begin = op->begin;
  item->meet = op->meet;
  item->barrier = op->barrier;
  if (item->meet)
    item->remaining = SIM_SPIN_NS;
  item->counted = counted;
  if (op->payload_bytes)
    memcpy(item->payload, op->payload, op->payload_bytes);
  item->attended = !waited && (op->resource != SIM_COMPUTE) && (op->resource != SIM_INSTANT || op->run);
  if (op->resource == SIM_COMPUTE && ((op->run && !waited) || op->meet))
    item->attended = true;
  if (item->attended)
    sim_worker_need(stream->ctx->device);
  return append(item, now);
}

uint64_t sim_enqueue_mark(struct sim_stream *stream, struct sim_mark *mark) {
  uint64_t now = sim_now();
  sim_advance(now);
  struct sim_item *item = sim_item_new(stream, SIM_INSTANT, 0, 0);
  if (item == NULL)
    return 0;
  item->mark = mark;
  mark->refs++;
  return append(item, now);
}

uint64_t sim_enqueue_wait(struct sim_stream *stream, struct sim_mark *mark) {
  uint64_t now = sim_now();
  sim_advance(now);
  if (mark->done)
    return sim_seq();
  struct sim_item *item = sim_item_new(stream, SIM_WAIT_EVENT, 0, 0);
  if (item == NULL)
    return 0;
  item->mark = mark;
  mark->refs++;
  if (mark->device != stream->ctx->device) {
    /* Neither lane's work is continuous across this wait, so the worker must be active when the other device reaches
     * the mark. */
    if (mark->item)
      attend(mark->item);
    item->attended = true;
    sim_worker_need(stream->ctx->device);
  }
  return append(item, now);
}

/* ---- the worker -------------------------------------------------------------------------------------------------- */

/* When the worker must next act; SIM_NEVER: not until it is woken. */
static uint64_t next_duty(CUdevice device, uint64_t now) {
  uint64_t best = SIM_NEVER;
  bool stuck = false, values = false;
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next) {
    if (ctx->device != device)
      continue;
    for (struct sim_stream *stream = ctx->streams; stream; stream = stream->next) {
      if (stream->attended == 0)
        continue;
      const struct sim_item *item = stream->head;
      while (!item->attended)
        item = item->next;
      values |= (item == stream->head && item->resource == SIM_WAIT_VALUE) || sim_item_spins(item);
      /* other processes wait for this kernel to start, not to end */
      uint64_t compute_sum = item->compute_sum - (item->meet ? item->duration : 0);
      uint64_t when = sim_bound(stream, compute_sum, item->copy_sum, now, 4);
      stuck |= when <= now;
      if (when > now && when < best)
        best = when;
    }
  }
  if (values && best > now + POLL_VALUE_NS)
    return now + POLL_VALUE_NS;
  if (stuck) {
    uint64_t event = sim_next_event();
    if (event < best)
      best = event;
  }
  return best;
}

static void run_host(struct sim_device *device, struct sim_item *item) {
  device->hosts = item->ready_next;
  sim_unlock();
  sim_host_function(true);
  item->run(item->payload);
  sim_host_function(false);
  sim_lock();
  uint64_t now = sim_now();
  sim_advance(now);
  sim_item_complete(item, now);
  sim_settle(now);
  sim_lane_wake(device); /* wakes the threads that wait for the stream */
}

struct worker_start {
  struct sim_device *device;
  sem_t up; /* posted by the worker, which does not use this afterwards */
};

static void *worker(void *arg) {
  struct worker_start *start = arg;
  struct sim_device *device = start->device;
  prctl(PR_SET_NAME, "sim-worker");
  prctl(PR_SET_TIMERSLACK, 1ul);
  sim_host_function(false); /* the loader allocates a thread's variables at their first use */
  sem_post(&start->up);
  sim_lock();
  for (;;) {
    uint32_t word = sim_lane_word(device);
    uint64_t now = sim_now();
    sim_advance(now);
    if (device->hosts) {
      run_host(device, device->hosts);
      continue;
    }
    uint64_t when = device->attended ? next_duty((CUdevice)(device - sim_devices), now) : SIM_NEVER;
    sim_unlock();
    now = sim_now();
    if (when > now)
      sim_lane_wait(device, word, when - now < 100 * (uint64_t)BLIND_NS ? when - now : 100 * (uint64_t)BLIND_NS);
    sim_lock();
  }
  return NULL;
}

/* Returns once the worker needs no more host memory: a program that has none left afterwards must not end by it. */
void sim_worker_need(CUdevice index) {
  struct sim_device *device = &sim_devices[index];
  if (device->worker) {
    sim_lane_wake(device);
    return;
  }
  sigset_t all, before;
  pthread_attr_t attributes;
  pthread_t thread;
  struct worker_start start = {.device = device};
  sem_init(&start.up, 0, 0);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals must be delivered to the program's own threads */
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  device->worker = pthread_create(&thread, &attributes, worker, &start) == 0;
  pthread_attr_destroy(&attributes);
  while (device->worker && sem_wait(&start.up) != 0)
    ; /* interrupted */
  sem_destroy(&start.up);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
