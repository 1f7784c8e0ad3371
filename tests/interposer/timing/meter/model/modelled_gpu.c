#include "modelled_gpu.h"

#include "modelled_others.h"
#include "modelled_repeats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_GPU = 800, QUERY = 300, DEPTH = 1024, BARRIERS = 1000, CLOCKED = 8 };

struct gs_meter meter;
struct gs_queue queues[STREAMS];
struct gs_clock clocks[1];
uint64_t now = first_instant, truth, tail[STREAMS], hold = 12000, seed = 1;
uint64_t reading, first_seed = 1;
uint32_t stolen_in;
bool metered = true;

uint64_t device_free;
static uint64_t first_launch;
static uint64_t submitted[DEPTH], submissions; /* ends of the last kernels: a full queue blocks a launch */
static uint64_t bracket[STREAMS][2], early[STREAMS];
static int clocked;
static const uint64_t skew = 123456789; /* device clock = host clock - skew */

uint64_t chance(uint64_t below) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (seed >> 33) % below;
}

static void call(uint64_t cost) {
  if (stolen_in && chance(stolen_in) == 0)
    now += 500000 + chance(7500000);
  now += cost;
  if (stolen_in && chance(stolen_in) == 0)
    now += 500000 + chance(7500000);
}

static uint64_t event(int s) {
  call(EVENT);
  tail[s] = (tail[s] > now ? tail[s] : now) + EVENT_GPU;
  return tail[s];
}

static void kernel(int s, uint64_t ns) {
  uint64_t begin, oldest = submitted[submissions % DEPTH];
  call(LAUNCH);
  if (oldest > now)
    now = oldest;
  begin = now > device_free ? now : device_free;
  if (tail[s] > begin)
    begin = tail[s];
  tail[s] = device_free = launched(begin, ns);
  if (submissions == 0)
    first_launch = now - LAUNCH;
  submitted[submissions++ % DEPTH] = tail[s];
  truth += ns;
}

/* A program is never charged more than the time since its first launch, nor than that for which it had a lease or work
 * on the device. Looked at from every call; ROUNDED: what marks and the notice of a lease may be off. */
static void check_bounds(void) {
  enum { ROUNDED = 5000, STEP = 10000 };
  static uint64_t first, seen;
  static double had;
  if (!metered)
    return;
  if (submissions == 0) { /* the program is new */
    first = 0;
    return;
  }
  if (first == 0) {
    first = seen = first_launch;
    had = ROUNDED;
  }
  for (; seen < now; seen += STEP)
    had += held_at(seen) || device_free > seen ? STEP : 0;
  if (meter.busy <= (double)(now - first) + ROUNDED && meter.busy <= had)
    return;
  fprintf(stderr, "charged %.3f ms, %.3f ms after the first launch, having had the device for %.3f ms\n",
          meter.busy / 1e6, (double)(now - first) / 1e6, had / 1e6);
  exit(3);
}

static void take_sample(int s) {
  if (!queues[s].sampled || bracket[s][1] > now)
    return;
  now += reading;
  absorb_all();
  if (early[s]) {
    clocked++;
    gs_clock_not_before(&clocks[0], early[s] - skew, queues[s].sampled_from);
  }
  gs_clock_not_before(&clocks[0], bracket[s][0] - skew,
                      queues[s].sampled_held == GS_HELD ? queues[s].sampled_closed : queues[s].sampled_from);
  gs_meter_sampled(&meter, &queues[s],
                   (double)(bracket[s][1] - bracket[s][0]) - (queues[s].sampled_held != GS_NOT_HELD ? EVENT_GPU : 0),
                   clocks[0].set ? gs_clock_host(&clocks[0], bracket[s][0] - skew) : 0, residents());
}

void reap(void) {
  notice();
  absorb_all();
  for (;;) {
    for (int s = 0; s < STREAMS; s++)
      take_sample(s);
    int best = -1;
    uint64_t done = 0;
    for (int s = 0; s < STREAMS; s++) {
      struct gs_mark *mark = gs_meter_oldest(&queues[s]);
      if (!mark)
        continue;
      now += QUERY;
      if ((uint64_t)(uintptr_t)mark->event <= now && (best < 0 || (uint64_t)(uintptr_t)mark->event < done)) {
        best = s;
        done = (uint64_t)(uintptr_t)mark->event;
      }
    }
    check_bounds();
    if (best < 0)
      return;
    now += reading;
    gs_meter_read(&meter, (double)(QUERY + reading));
    gs_clock_not_before(&clocks[0], done - skew, gs_meter_oldest(&queues[best])->recorded);
    gs_clock_not_after(&clocks[0], done - skew, now);
    gs_meter_reap(&meter, &queues[best], gs_clock_host(&clocks[0], done - skew), lease_at(now), residents());
  }
}

static void mark(int s, bool start) {
  bool first = queues[s].end > now; /* as in marks.c */
  if (first)
    reap();
  uint64_t began = now;
  absorb(s);
  struct gs_mark *mark = gs_meter_mark(&meter, &queues[s], start, now);
  if (!mark) {
    if (!first)
      reap();
    return;
  }
  mark->event = (void *)(uintptr_t)event(s);
  mark->recorded_by = now;
  gs_meter_recorded(&meter, (double)(now - began));
  mark->state = GS_MARK_RECORDED;
  if (first)
    take_sample(s);
  else
    reap();
}

/* As the gate does: ends the open segment before it waits for a lease, and waits until the work in flight is within the
 * bound. */
static void gate(int s) {
  uint64_t bound = 2000000;
  if (foreign == ALONE)
    return;
  for (;;) {
    double inflight = 0;
    if (!held_at(now)) {
      for (int i = 0; metered && i < STREAMS; i++)
        if (queues[i].open.launches > 0)
          mark(i, false);
      if (yields() && metered)
        reap();
      if (yields())
        regain();
      for (; !held_at(now); now += 50000) { /* the gate thread polls */
        if (metered)
          reap();
        if (metered && meter.marks == 0 && now >= device_free)
          gs_meter_turn(&meter, GS_METER_AWAY, now);
      }
    }
    if (!metered)
      return;
    reap();
    if (meter.others != foreign_at(now))
      gs_meter_turn(&meter, foreign_at(now), now);
    for (int i = 0; i < STREAMS; i++)
      inflight += gs_queue_inflight(&queues[i], (double)bound, now);
    if (inflight <= (double)bound)
      return;
    if (meter.marks == 0 && queues[s].open.launches > 0)
      mark(s, false);
    now += 50000;
  }
}

static uint64_t brief_wait[STREAMS]; /* when a wait that is not booked ended, if nothing was launched since; else 0 */

/* Estimated work that the bound still lets in flight. */
static double room(void) { return (foreign == ALONE ? 50e6 : 2e6) - meter.inflight; }

void launch(int s, uint64_t key, uint64_t ns) {
  if (metered && held_at(now) && repeats(s, key, lease_at(now))) {
    brief_wait[s] = 0;
    kernel(s, ns);
    return;
  }
  gate(s);
  if (!metered) {
    kernel(s, ns);
    return;
  }
  absorb(s);
  if (brief_wait[s] && queues[s].head == queues[s].tail && !queues[s].sampled)
    gs_meter_synced(&meter, &queues[s], brief_wait[s], (struct gs_waited){0});
  brief_wait[s] = 0;
  struct gs_function *function = gs_meter_function(&meter, key);
  if (gs_meter_close_first(&queues[s], function, now)) {
    mark(s, false);
    function = gs_meter_function(&meter, key);
  }
  uint64_t planned = now, began;
  uint32_t plan = gs_meter_launch(&meter, &queues[s], function, now, lease_at(now));
  repeat_from(s, key, lease_at(now), room());
  if (plan & GS_PLAN_START) {
    mark(s, true);
    gs_meter_started(&queues[s], now);
  }
  if (plan & GS_PLAN_SAMPLE)
    take_sample(s);
  if (plan & GS_PLAN_SAMPLE && queues[s].sampled) {
    plan = (plan & ~(uint32_t)GS_PLAN_SAMPLE) | GS_PLAN_MARK;
    queues[s].bracketing = false;
  }
  if (plan & GS_PLAN_SAMPLE) {
    early[s] = clocked < CLOCKED ? event(s) : 0;
    if (hold && plan & GS_PLAN_HOLD) {
      call(BARRIERS);
      tail[s] = (tail[s] > now ? tail[s] : now) + hold;
      tail[s] = worked(tail[s] > device_free ? tail[s] : device_free, 1); /* in a time slice of this process */
    }
    bracket[s][0] = event(s);
  }
  began = now;
  kernel(s, ns);
  queues[s].made = now;
  if (plan & GS_PLAN_SAMPLE) {
    uint64_t ended = now;
    bracket[s][1] = event(s);
    gs_meter_sampling(&queues[s], function, plan, planned, began, ended, now,
                      bracket[s][0] > now           ? GS_HELD
                      : hold && plan & GS_PLAN_HOLD ? GS_HELD_BRIEFLY
                                                    : GS_NOT_HELD);
  }
  if (plan & GS_PLAN_MARK)
    mark(s, false);
}

void sync_stream(int s) {
  uint64_t began = now; /* the thread may lose its processor while the mark is recorded */
  bool brief = metered && wait_is_short(s, began);
  if (metered && !brief) {
    absorb(s);
    if (gs_meter_check_before_sync(&meter, &queues[s]))
      mark(s, false);
  }
  if (tail[s] > now)
    now = tail[s];
  call(5000); /* the thread wakes up, or gets its processor back */
  if (!metered)
    return;
  brief_wait[s] = brief && wait_is_short(s, began) ? now : 0;
  if (brief_wait[s])
    return;
  reap();
  take_sample(s);
  gs_meter_synced(&meter, &queues[s], now, (struct gs_waited){began, now, residents(), true});
  check_bounds();
}

void remake_stream(int s) {
  call(4000);
  if (!metered)
    return;
  reap();
  take_sample(s);
  forget_repeats(s);
  memset(&queues[s], 0, sizeof queues[s]);
  queues[s].unclocked = !clocks[0].set;
}

void sync_all(void) {
  absorb_all(); /* the gate thread would find them idle, whichever way they were waited for */
  for (int s = 0; s < STREAMS; s++) {
    forget_repeats(s);
    sync_stream(s);
  }
}

void wait_unseen(int s) {
  if (tail[s] > now)
    now = tail[s];
  call(1000);
}

void wait_for(int s, bool unseen) {
  if (unseen)
    wait_unseen(s);
  else
    sync_stream(s);
}

void restart(void) {
  memset(&meter, 0, sizeof meter);
  if (reading > 0)
    meter.mark_most_ns = 12500000; /* as for a program that is alone */
  memset(queues, 0, sizeof queues);
  for (int s = 0; s < STREAMS; s++) {
    queues[s].unclocked = true;
    forget_repeats(s);
  }
  memset(clocks, 0, sizeof clocks);
  clocked = 0;
  memset(tail, 0, sizeof tail);
  memset(brief_wait, 0, sizeof brief_wait);
  memset(submitted, 0, sizeof submitted);
  device_free = truth = submissions = 0;
  others_anew();
  now = first_instant;
  seed = meter.choice = first_seed;
  meter.event_ns = EVENT_GPU;
}
