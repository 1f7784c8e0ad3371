#include "modelled_gpu.h"

#include "modelled_repeats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_GPU = 800, QUERY = 300, DEPTH = 1024, BARRIERS = 1000, CLOCKED = 8 };

struct gs_meter meter;
struct gs_queue queues[STREAMS];
struct gs_clock clocks[1];
uint64_t now = 1000000000000u, truth, tail[STREAMS], hold = 12000, noticed, seed = 1;
uint64_t reading, first_seed = 1;
uint32_t stolen_in;
bool metered = true;
enum others foreign;

static uint64_t device_free, first_launch;
static uint64_t submitted[DEPTH], submissions; /* ends of the last kernels: a full queue blocks a launch */
static uint64_t bracket[STREAMS][2], early[STREAMS];
static int clocked;
static const uint64_t skew = 123456789; /* device clock = host clock - skew */

/* Leases alternate with those of the others. */
enum { PERIOD = 42000000, LEASE = 20000000, GAP = 1000000, SLICE = 2000000, NOTICE = 70000 };
enum { LATER = 1000000000 };
static const uint64_t begun = 1000000000000u;

/* Of FOREIGN_YIELDS: this program's lease, which it asks for when it launches and loses when it has been idle. The
 * other has work whenever it is not held, and less than 0.2 ms of it when the lease changes hands, as the arbiter has
 * it. */
enum { IDLE_LEAST = 200000, IDLE_MOST = 20000000, WAIT_MOST = 1000000, REST_MOST = 200000, REVOKE = 50000 };
static struct {
  uint64_t granted, tail_until, lost, idle; /* idle: how long it is kept after the last work */
  uint32_t word;
  bool noticed_tail, noticed_loss;
} lease;

static bool foreign_at(uint64_t t) {
  uint64_t at = t % PERIOD;
  if (foreign == FOREIGN_YIELDS)
    return t >= lease.lost || t < lease.tail_until;
  if (foreign == FOREIGN_CLAIMED || foreign == FOREIGN_LATER)
    return t >= begun + LATER;
  return foreign == FOREIGN_ALWAYS || (foreign == FOREIGN_IN_TURN && (at >= LEASE + GAP || at < SLICE));
}

static bool held_at(uint64_t t) {
  if (foreign == FOREIGN_YIELDS)
    return t >= lease.granted && t < lease.lost;
  return foreign == ALONE || t % PERIOD < LEASE;
}
static uint32_t lease_at(uint64_t t) {
  if (foreign == FOREIGN_YIELDS)
    return lease.word + !held_at(t);
  return foreign == ALONE ? 1 : 1 + 2 * (uint32_t)(t / PERIOD % 1000000) + !held_at(t);
}

/* The time at which the device will have done `ns` of our work, from `begin` on. */
static uint64_t worked(uint64_t begin, uint64_t ns) {
  if (foreign == ALONE || foreign == FOREIGN_CLAIMED)
    return begin + ns;
  while (ns > 0) {
    uint64_t step = 10000 - begin % 10000;
    bool ours = !foreign_at(begin) || begin / SLICE % 2 == 0;
    if (ours && step > ns)
      step = ns;
    if (ours)
      ns -= step;
    begin += step;
  }
  return begin;
}

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

/* The lease was lost: the program's gate thread has seen that, or the launching thread sees it now. */
static void notice_loss(void) {
  uint64_t at = now < lease.lost + NOTICE ? now : lease.lost + NOTICE;
  if (!metered || lease.noticed_loss || lease.granted == 0)
    return;
  lease.noticed_loss = true;
  if (device_free > at)
    gs_meter_turn(&meter, 1, lease.lost);
  if (device_free <= now)
    gs_meter_turn(&meter, GS_METER_AWAY, device_free > at ? device_free : at);
}

/* Asks the other for the lease. */
static void regain(void) {
  notice_loss();
  now += REVOKE + (now - lease.granted >= LEASE ? chance(LEASE) : chance(WAIT_MOST));
  lease.granted = now;
  lease.tail_until = now + chance(REST_MOST);
  if (lease.tail_until < device_free) /* what is in flight was given its time beside the other when it was launched */
    lease.tail_until = device_free;
  lease.lost = now + LEASE;
  lease.idle = IDLE_LEAST + chance(chance(IDLE_MOST));
  lease.word += 2;
  lease.noticed_tail = lease.noticed_loss = false;
  if (metered)
    gs_meter_turn(&meter, foreign_at(now), now);
}

static uint64_t event(int s) {
  call(EVENT);
  tail[s] = (tail[s] > now ? tail[s] : now) + EVENT_GPU;
  return tail[s];
}

/* Reports changes of the lease word and of foreign work to the meter, NOTICE ns after they happened. */
static void notice(void) {
  const uint64_t change[] = {0, SLICE, LEASE + GAP};
  if (foreign == ALONE)
    return;
  if (foreign == FOREIGN_YIELDS) {
    if (!lease.noticed_tail && now >= lease.tail_until + NOTICE) {
      lease.noticed_tail = true;
      gs_meter_turn(&meter, 0, lease.tail_until);
    }
    if (now >= lease.lost + NOTICE)
      notice_loss();
    return;
  }
  if (noticed == 0)
    noticed = now;
  for (uint64_t period = noticed / PERIOD * PERIOD; period <= now; period += PERIOD)
    for (int i = 0; i < 3; i++) {
      uint64_t at = period + change[i], seen = at + NOTICE;
      if (seen <= noticed || seen > now || foreign_at(at) == meter.others)
        continue;
      gs_meter_turn(&meter, foreign_at(at), held_at(at) ? seen : at);
    }
  noticed = now;
}

static void kernel(int s, uint64_t ns) {
  uint64_t begin, oldest = submitted[submissions % DEPTH];
  call(LAUNCH);
  if (oldest > now)
    now = oldest;
  begin = now > device_free ? now : device_free;
  if (tail[s] > begin)
    begin = tail[s];
  if (foreign == FOREIGN_YIELDS)
    lease.lost = lease.granted + LEASE;
  tail[s] = device_free = worked(begin, ns);
  if (foreign == FOREIGN_YIELDS && device_free + lease.idle < lease.lost)
    lease.lost = device_free + lease.idle;
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
                   clocks[0].set ? gs_clock_host(&clocks[0], bracket[s][0] - skew) : 0, 1);
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
    gs_meter_reap(&meter, &queues[best], gs_clock_host(&clocks[0], done - skew), lease_at(now), 1);
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
      if (foreign == FOREIGN_YIELDS && metered)
        reap();
      if (foreign == FOREIGN_YIELDS)
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

/* Estimated work that the bound still lets in flight. */
static double room(void) { return (foreign == ALONE ? 50e6 : 2e6) - meter.inflight; }

void launch(int s, uint64_t key, uint64_t ns) {
  if (metered && held_at(now) && repeats(s, key, lease_at(now))) {
    kernel(s, ns);
    return;
  }
  gate(s);
  if (!metered) {
    kernel(s, ns);
    return;
  }
  absorb(s);
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
    if (gs_meter_check_before_sync(&queues[s]))
      mark(s, false);
  }
  if (tail[s] > now)
    now = tail[s];
  call(5000); /* the thread wakes up, or gets its processor back */
  if (!metered || (brief && wait_is_short(s, began)))
    return;
  reap();
  take_sample(s);
  gs_meter_synced(&meter, &queues[s], now, (struct gs_waited){began, now, 1, true});
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
  memset(submitted, 0, sizeof submitted);
  memset(&lease, 0, sizeof lease);
  lease.word = 1;
  device_free = truth = submissions = noticed = 0;
  now = begun;
  seed = meter.choice = first_seed;
  meter.event_ns = EVENT_GPU;
}
