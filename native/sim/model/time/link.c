/* The link between a device and the host, which the copies of all processes share.
 *
 * Each copy that begins is an entry in a log that all processes map (struct sim_direction). From the entries alone each
 * process computes when its own copy ends, so none depends on what another does afterwards: copies of a process that was
 * stopped or killed go on, as those of hardware that has them would. An entry can only make earlier copies end later.
 *
 * Copies in one direction share its rate equally. One from or to pageable memory moves at most at that rate, and what it
 * leaves goes to the others. */
#define _GNU_SOURCE
#include "sim/model/time/link.h"

#include <sys/mman.h>
#include <unistd.h>

enum {
  ACTIVE_MAX = 256,       /* copies under way in one direction */
  UNWRITTEN_NS = 1000000, /* an entry that takes longer to write is left out: its process may have died */
  FAR_BEHIND = SIM_TRANSFERS / 2
};

struct active {
  uint64_t entry;
  double left; /* ns, if it were alone */
  bool pageable;
};

/* One direction, as computed from the entries before `seen`. */
struct state {
  uint64_t time;
  unsigned count;
  struct active active[ACTIVE_MAX];
};

/* Under sim_lock. */
static struct view {
  struct sim_direction *link; /* NULL: not mapped yet */
  uint64_t seen;
  uint64_t own;   /* entry of this process's latest copy */
  uint64_t ended; /* when it ended, according to the entries; 0: it has not */
  uint64_t ends;  /* when it will end, as computed from the first `computed` entries; 0: not computed */
  uint64_t computed;
  uint64_t unwritten_at; /* since when the entry at `seen` has been missing; 0: it is not */
  struct state state;
} views[SIM_MAX_DEVICES][SIM_DIRECTIONS];

/* False: the engine has gone, and copies take what they take alone. */
static bool map(CUdevice device) {
  struct sim_reply reply;
  int fd = -1;
  if (sim_call(SIM_LINKS_GET, device, 0, &reply, &fd, 1) != 0 || fd < 0)
    return false;
  size_t bytes = SIM_DIRECTIONS * sizeof(struct sim_direction);
  struct sim_direction *links = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (links == MAP_FAILED)
    return false;
  madvise(links, bytes, MADV_DONTFORK);
  for (int i = 0; i < SIM_DIRECTIONS; i++) {
    uint64_t count = __atomic_load_n(&links[i].count, __ATOMIC_ACQUIRE);
    views[device][i] = (struct view){.link = &links[i], .seen = count > FAR_BEHIND ? count - FAR_BEHIND : 0};
  }
  return true;
}

/* ---- sharing ----------------------------------------------------------------------------------------------------- */

/* How fast copies move, where 1 is as if each were alone. */
struct speeds {
  double pinned, pageable;
};

static struct speeds speeds_of(const struct state *state) {
  unsigned slow = 0;
  for (unsigned i = 0; i < state->count; i++)
    slow += state->active[i].pageable;
  double rate = (double)sim_hello.copy_bytes_per_us, slowest = (double)sim_pageable_rate();
  double fair = state->count ? rate / state->count : rate;
  if (fair <= slowest)
    return (struct speeds){fair / rate, fair / slowest};
  unsigned fast = state->count - slow;
  return (struct speeds){fast ? (rate - slow * slowest) / fast / rate : 1, 1};
}

static double speed(const struct speeds *speeds, const struct active *one) {
  return one->pageable ? speeds->pageable : speeds->pinned;
}

/* When the first copy ends if none is added, and which it is. SIM_NEVER: there is none. */
static uint64_t first_end(const struct state *state, unsigned *which) {
  const struct speeds speeds = speeds_of(state);
  double best = 0;
  *which = state->count;
  for (unsigned i = 0; i < state->count; i++) {
    double takes = state->active[i].left / speed(&speeds, &state->active[i]);
    if (*which < state->count && takes >= best)
      continue;
    best = takes;
    *which = i;
  }
  return *which < state->count ? state->time + (uint64_t)(best + 0.999) : SIM_NEVER;
}

/* Moves to t, before which no copy ends. */
static void move_on(struct state *state, uint64_t t) {
  const struct speeds speeds = speeds_of(state);
  for (unsigned i = 0; i < state->count; i++) {
    struct active *one = &state->active[i];
    one->left -= (double)(t - state->time) * speed(&speeds, one);
    one->left = one->left > 0 ? one->left : 0;
  }
  state->time = t;
}

/* Ends the first copy if that is at t or before. Returns its end, SIM_NEVER if none ends, and which one it was. */
static uint64_t end_one(struct state *state, uint64_t t, uint64_t *entry) {
  unsigned which;
  uint64_t end = first_end(state, &which);
  if (end == SIM_NEVER || end > t)
    return SIM_NEVER;
  *entry = state->active[which].entry;
  move_on(state, end);
  state->active[which] = state->active[--state->count];
  return end;
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static void apply(struct view *view, const struct sim_transfer *transfer, uint64_t entry) {
  struct state *state = &view->state;
  uint64_t t = transfer->at > state->time ? transfer->at : state->time, ended, end;
  while ((end = end_one(state, t, &ended)) != SIM_NEVER)
    if (ended == view->own)
      view->ended = end;
  move_on(state, t);
  if (state->count < ACTIVE_MAX)
    state->active[state->count++] = (struct active){entry, (double)transfer->alone, transfer->pageable};
}

/* True if the entry can be skipped although nobody has written it. */
static bool given_up(struct view *view, uint64_t now) {
  if (view->unwritten_at == 0)
    view->unwritten_at = now;
  return now - view->unwritten_at > UNWRITTEN_NS;
}

static void read_log(struct view *view) {
  uint64_t count;
  while (view->seen < (count = __atomic_load_n(&view->link->count, __ATOMIC_ACQUIRE))) {
    const struct sim_transfer *slot = &view->link->transfer[view->seen % SIM_TRANSFERS];
    uint64_t number = __atomic_load_n(&slot->number, __ATOMIC_ACQUIRE);
    struct sim_transfer copy = {.at = __atomic_load_n(&slot->at, __ATOMIC_RELAXED),
                                .alone = __atomic_load_n(&slot->alone, __ATOMIC_RELAXED),
                                .pageable = __atomic_load_n(&slot->pageable, __ATOMIC_RELAXED)};
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    bool whole = number == view->seen + 1 && __atomic_load_n(&slot->number, __ATOMIC_RELAXED) == number;
    if (count - view->seen > SIM_TRANSFERS) { /* overwritten: this process has not looked for long */
      view->seen = count - FAR_BEHIND;
      continue;
    }
    if (!whole && !given_up(view, sim_now()))
      return;
    if (whole)
      apply(view, &copy, view->seen + 1);
    view->unwritten_at = 0;
    view->seen++;
  }
}

static struct view *view_of(const struct sim_item *item) {
  return &views[item->stream->ctx->device][item->resource == SIM_COPY_IN ? SIM_TO_DEVICE : SIM_FROM_DEVICE];
}

void sim_link_begin(struct sim_item *item, uint64_t t) {
  struct view *view = view_of(item);
  item->end = t + item->duration;
  if (view->link == NULL && !map(item->stream->ctx->device))
    return;
  read_log(view);
  uint64_t number = __atomic_add_fetch(&view->link->count, 1, __ATOMIC_SEQ_CST);
  struct sim_transfer *slot = &view->link->transfer[(number - 1) % SIM_TRANSFERS];
  __atomic_store_n(&slot->number, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot->at, t, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->alone, item->duration, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->pageable, item->pageable, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->number, number, __ATOMIC_SEQ_CST);
  view->own = number;
  view->ended = view->ends = 0;
}

/* Computes when this process's copy ends if none is added. False: it is not among those that are counted. */
static bool look_ahead(struct view *view) {
  struct state ahead = view->state;
  uint64_t ended = 0, end;
  do
    end = end_one(&ahead, SIM_NEVER - 1, &ended);
  while (end != SIM_NEVER && ended != view->own);
  if (end == SIM_NEVER)
    return false;
  view->ends = end;
  view->computed = view->seen;
  return true;
}

uint64_t sim_link_end(const struct sim_item *item) {
  struct view *view = view_of(item);
  if (view->link == NULL)
    return item->end;
  uint64_t count = __atomic_load_n(&view->link->count, __ATOMIC_ACQUIRE);
  if (view->ended == 0 && (view->ends == 0 || view->computed != count))
    read_log(view);
  if (view->ended)
    return view->ended;
  if (view->ends && view->computed == view->seen)
    return view->ends;
  /* Without an answer it is alone: an earlier entry is still being written, or there are more copies than are counted. */
  return view->seen >= view->own && look_ahead(view) ? view->ends : item->end;
}

uint64_t sim_item_end(const struct sim_item *item) {
  return item->resource == SIM_FRONT ? item->end : sim_link_end(item);
}

void sim_link_done(const struct sim_item *item) {
  struct sim_lane *page = sim_devices[item->stream->ctx->device].page;
  uint64_t *bytes = &page->copied[item->resource == SIM_COPY_IN ? SIM_TO_DEVICE : SIM_FROM_DEVICE];
  __atomic_store_n(bytes, *bytes + item->bytes, __ATOMIC_RELAXED);
}

/* ---- what copies cost -------------------------------------------------------------------------------------------- */

enum { COPY_LATENCY_NS = 1500 };

uint64_t sim_pageable_rate(void) {
  uint64_t slow = sim_hello.pageable_bytes_per_us;
  return slow < sim_hello.copy_bytes_per_us ? slow : sim_hello.copy_bytes_per_us;
}

uint64_t sim_copy_ns(uint64_t bytes, bool pageable) {
  return COPY_LATENCY_NS + bytes * 1000 / (pageable ? sim_pageable_rate() : sim_hello.copy_bytes_per_us);
}
