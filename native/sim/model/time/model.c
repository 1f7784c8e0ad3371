/* The discrete-event simulation: starts and completes items in model time. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/model/time/link.h"
#include "sim/model/time/streams.h"

static uint64_t last_seq;
/* Streams whose head may be able to start, and streams whose chain may grow. */
static struct sim_stream *kicked, *chain_kicked;
static bool some_drained;            /* a destroyed stream has become empty: free it once it is on no work list */
static struct sim_item *value_waits; /* started value waits, through wait_next */

uint64_t sim_seq(void) { return last_seq; }

static void kick(struct sim_stream *stream) {
  if (!stream->kicked) {
    stream->kicked = true;
    stream->kick_next = kicked;
    kicked = stream;
  }
}

static void kick_chain(struct sim_stream *stream) {
  if (!stream->chain_kicked && stream->chain) {
    stream->chain_kicked = true;
    stream->chain_next = chain_kicked;
    chain_kicked = stream;
  }
}

/* Kicks the streams that may wait for this one: the legacy stream synchronises with all blocking streams of its
 * context. */
static void kick_ordered(struct sim_stream *stream, void (*kick_one)(struct sim_stream *)) {
  if (stream->legacy) {
    for (struct sim_stream *other = stream->ctx->streams; other; other = other->next)
      if (other->blocking && other->head)
        kick_one(other);
  } else if (stream->blocking && stream->ctx->legacy->head) {
    kick_one(stream->ctx->legacy);
  }
}

/* True if the rules of the legacy stream let an item with this sequence number start: the first unfinished item of each
 * stream it synchronises with must be later. */
static bool order_allows(const struct sim_stream *stream, uint64_t seq, bool chain) {
  if (stream->legacy) {
    for (const struct sim_stream *other = stream->ctx->streams; other; other = other->next) {
      const struct sim_item *first = chain ? other->chain : other->head;
      if (other->blocking && !other->legacy && first && first->seq < seq)
        return false;
    }
  } else if (stream->blocking) {
    const struct sim_item *first = chain ? stream->ctx->legacy->chain : stream->ctx->legacy->head;
    return first == NULL || first->seq > seq;
  }
  return true;
}

bool sim_stream_done(const struct sim_stream *stream, uint64_t seq) {
  if (stream->head && stream->head->seq <= seq)
    return false;
  return !stream->legacy || order_allows(stream, seq + 1, false);
}

/* ---- marks and items --------------------------------------------------------------------------------------------- */

static void mark_chained(struct sim_mark *mark) {
  if (mark->chained)
    return;
  mark->chained = true;
  for (struct sim_item *waiter = mark->waiters; waiter; waiter = waiter->wait_next)
    kick_chain(waiter->stream);
}

static void mark_reached(struct sim_mark *mark, uint64_t t) {
  mark->done = mark->chained = true;
  mark->time = t;
  mark->item = NULL;
  for (struct sim_item *waiter = mark->waiters, *next; waiter; waiter = next) {
    next = waiter->wait_next;
    waiter->wait_next = NULL;
    kick(waiter->stream);
    kick_chain(waiter->stream);
    if (waiter->stream->ctx->device != mark->device)
      sim_lane_wake(&sim_devices[waiter->stream->ctx->device]);
  }
  mark->waiters = NULL;
}

void sim_item_push(struct sim_item *item) {
  struct sim_stream *stream = item->stream;
  item->seq = ++last_seq;
  sim_pending_add();
  if (item->resource == SIM_COMPUTE)
    stream->compute_sum += item->duration;
  if (item->resource > SIM_COMPUTE && item->resource <= SIM_FRONT)
    stream->copy_sum += item->duration;
  item->compute_sum = stream->compute_sum;
  item->copy_sum = stream->copy_sum;
  if (stream->tail)
    stream->tail->next = item;
  else
    stream->head = item;
  stream->tail = item;
  if (stream->chain == NULL)
    stream->chain = item;
  stream->depth += item->counted;
  if (item->attended) {
    stream->attended++;
    sim_attended(stream->ctx->device, 1);
  }
  if (item->resource == SIM_WAIT_EVENT && !item->mark->done) {
    item->wait_next = item->mark->waiters;
    item->mark->waiters = item;
  }
  if (item->resource == SIM_INSTANT && item->mark)
    item->mark->item = item;
  kick(stream);
  kick_chain(stream);
}

/* ---- resources --------------------------------------------------------------------------------------------------- */

static struct sim_unit *unit_of(const struct sim_item *item) {
  struct sim_device *device = &sim_devices[item->stream->ctx->device];
  if (item->resource == SIM_COMPUTE)
    return &device->compute;
  if (item->resource == SIM_FRONT)
    return &device->front;
  return item->resource == SIM_COPY_IN ? &device->copy_in : &device->copy_out;
}

bool sim_item_spins(const struct sim_item *item) {
  return item->meet && sim_devices[item->stream->ctx->device].compute.running == item;
}

/* Polls a kernel that occupies the device while it waits for other kernels. Its own duration starts when they have
 * arrived. */
static void look_for_others(struct sim_item *item) {
  struct sim_device *device = &sim_devices[item->stream->ctx->device];
  if (!item->meet(item->payload))
    return;
  item->meet = NULL;
  device->backlog -= item->remaining - item->duration;
  device->dirty = true;
  item->remaining = item->duration;
  sim_lane_wake(device);
}

static void unit_start(struct sim_unit *unit, uint64_t t) {
  struct sim_item *item = unit->ready_head;
  if (unit->running || item == NULL)
    return;
  unit->ready_head = item->ready_next;
  item->ready_next = NULL;
  unit->running = item;
  if (item->resource == SIM_FRONT)
    item->end = t + item->duration;
  else if (item->resource != SIM_COMPUTE)
    sim_link_begin(item, t);
  if (item->begin)
    sim_effect(item, item->begin, false);
  if (item->meet)
    look_for_others(item);
}

/* Lower numbers are higher priorities. Items of equal priority run in order of arrival. */
static void unit_enqueue(struct sim_unit *unit, struct sim_item *item, uint64_t t) {
  struct sim_item **at = &unit->ready_head;
  while (*at && (*at)->stream->priority <= item->stream->priority)
    at = &(*at)->ready_next;
  item->ready_next = *at;
  *at = item;
  unit_start(unit, t);
}

static void poll_values(uint64_t t) {
  for (struct sim_item **at = &value_waits; *at;) {
    struct sim_item *item = *at;
    if (item->ready(item->payload)) {
      *at = item->wait_next;
      item->wait_next = NULL;
      sim_item_complete(item, t);
      at = &value_waits; /* completing an item may have changed the list */
    } else {
      at = &item->wait_next;
    }
  }
}

void sim_item_complete(struct sim_item *item, uint64_t t) {
  struct sim_stream *stream = item->stream;
  if (item->resource <= SIM_FRONT) {
    struct sim_unit *unit = unit_of(item);
    unit->running = NULL;
    if (item->bytes)
      sim_link_done(item);
    unit_start(unit, t);
  }
  stream->head = item->next;
  if (stream->head == NULL)
    stream->tail = NULL;
  if (stream->chain == item)
    stream->chain = item->next;
  stream->depth -= item->counted;
  if (item->attended) {
    stream->attended--;
    sim_attended(stream->ctx->device, -1);
  }
  bool acts = item->run != NULL && item->resource != SIM_HOST;
  sim_effect(item, acts ? item->run : NULL, true);
  if (item->resource == SIM_INSTANT && item->mark)
    mark_reached(item->mark, t);
  sim_mark_release(item->mark);
  free(item);
  if (stream->head) {
    kick(stream);
    kick_chain(stream);
  }
  kick_ordered(stream, kick);
  kick_ordered(stream, kick_chain);
  if (acts && value_waits)
    poll_values(t);
  if (stream->gone && stream->head == NULL)
    some_drained = true;
}

/* Starts the head of the stream if everything it waits for is complete. Returns true if the head completed at once, so
 * the next item may start. */
static bool start_head(struct sim_stream *stream, uint64_t t) {
  struct sim_item *item = stream->head;
  if (item == NULL || item->started || !order_allows(stream, item->seq, false))
    return false;
  struct sim_device *device = &sim_devices[stream->ctx->device];
  switch (item->resource) {
    case SIM_COMPUTE:
    case SIM_COPY_IN:
    case SIM_COPY_OUT:
    case SIM_FRONT:
      item->started = true;
      unit_enqueue(unit_of(item), item, t);
      return false;
    case SIM_HOST:
      item->started = true;
      item->ready_next = NULL;
      struct sim_item **at = &device->hosts;
      while (*at)
        at = &(*at)->ready_next;
      *at = item;
      sim_lane_wake(device);
      return false;
    case SIM_WAIT_VALUE:
      if (!item->ready(item->payload)) {
        item->started = true;
        item->wait_next = value_waits;
        value_waits = item;
        sim_lane_wake(device);
        return false;
      }
      break;
    case SIM_WAIT_EVENT:
      if (!item->mark->done)
        return false;
      break;
    case SIM_INSTANT: break;
  }
  sim_item_complete(item, t);
  return true;
}

/* Extends the chain: the items at the front that need only device time. Copies, host functions and value waits
 * interrupt it until they are done, and so does a wait for another device. */
static void extend_chain(struct sim_stream *stream) {
  bool moved = false;
  for (struct sim_item *item = stream->chain; item; item = stream->chain) {
    if (!order_allows(stream, item->seq, true))
      break;
    if (item->resource == SIM_COMPUTE) {
      struct sim_device *device = &sim_devices[stream->ctx->device];
      device->backlog += item->remaining;
      device->barriers += item->barrier ? item->remaining : 0;
      device->dirty |= item->remaining > 0;
      if (!sim_hello.preempt)
        sim_lane_boundary(device, device->executed + device->backlog);
    } else if (item->resource == SIM_WAIT_EVENT) {
      if (!item->mark->done && (!item->mark->chained || item->mark->device != stream->ctx->device))
        break;
    } else if (item->resource == SIM_INSTANT) {
      if (item->mark)
        mark_chained(item->mark);
    } else {
      break;
    }
    item->chained = moved = true;
    stream->chain = item->next;
  }
  if (moved)
    kick_ordered(stream, kick_chain);
}

/* Starts what can start at t. Chains are extended first, because an item must be in the backlog before it can
 * execute. */
static void settle(uint64_t t) {
  while (kicked || chain_kicked) {
    while (chain_kicked) {
      struct sim_stream *stream = chain_kicked;
      chain_kicked = stream->chain_next;
      stream->chain_kicked = false;
      extend_chain(stream);
    }
    struct sim_stream *stream = kicked;
    if (stream == NULL)
      continue;
    kicked = stream->kick_next;
    stream->kicked = false;
    if (start_head(stream, t))
      kick(stream);
  }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static uint64_t unit_end(const struct sim_device *device, const struct sim_unit *unit) {
  if (unit->running == NULL || unit->running->meet)
    return SIM_NEVER;
  return unit->running->resource == SIM_COMPUTE ? sim_lane_when(device, unit->running->remaining)
                                                : sim_item_end(unit->running);
}

static uint64_t first_end(struct sim_unit **which) {
  uint64_t best = SIM_NEVER;
  for (uint32_t i = 0; i < sim_hello.ndevices; i++) {
    struct sim_device *device = &sim_devices[i];
    struct sim_unit *units[] = {&device->compute, &device->copy_in, &device->copy_out, &device->front};
    if (!device->open)
      continue;
    for (int u = 0; u < 4; u++) {
      uint64_t end = unit_end(device, units[u]);
      if (end >= best)
        continue;
      best = end;
      if (which)
        *which = units[u];
    }
  }
  return best;
}

uint64_t sim_next_event(void) { return first_end(NULL); }

/* Consumes the device time that arrived until t. */
static void consume(struct sim_device *device, uint64_t t) {
  uint64_t got = sim_lane_consume(device, t);
  struct sim_item *item = device->compute.running;
  if (item == NULL || got == 0)
    return;
  if (got > item->remaining)
    got = item->remaining;
  item->remaining -= got;
  device->executed += got;
  device->backlog -= got;
}

void sim_advance(uint64_t now) {
  struct sim_unit *unit = NULL;
  uint64_t t;
  while ((t = first_end(&unit)) <= now) {
    for (uint32_t i = 0; i < sim_hello.ndevices; i++)
      if (sim_devices[i].open)
        consume(&sim_devices[i], t);
    sim_item_complete(unit->running, t);
    settle(t);
  }
  for (uint32_t i = 0; i < sim_hello.ndevices; i++)
    if (sim_devices[i].open)
      consume(&sim_devices[i], now);
  for (uint32_t i = 0; i < sim_hello.ndevices; i++) {
    struct sim_item *running = sim_devices[i].compute.running;
    if (running && running->meet)
      look_for_others(running);
  }
  if (value_waits)
    poll_values(now);
  sim_settle(now);
}

void sim_settle(uint64_t now) {
  settle(now);
  for (uint32_t i = 0; i < sim_hello.ndevices; i++)
    if (sim_devices[i].open)
      sim_lane_report(&sim_devices[i]);
  if (some_drained)
    sim_streams_sweep();
  some_drained = false;
}
