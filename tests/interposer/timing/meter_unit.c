/* The meter against a modelled GPU: one serial device, FIFO streams, costs of calls as published for real drivers. Time
 * is a variable, so the results are exact and independent of the machine. Usage: meter_unit PATTERN KERNEL_NS [COUNT
 * [HOLD_NS]] -> prints "truth metered wall bare"; meter_unit self -> runs the small checks and sets the exit status. */
#include "interposer/meter/meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCH = 2000, EVENT = 2500, EVENT_GPU = 800, QUERY = 300, DEPTH = 1024, STREAMS = 6, BARRIERS = 1000 };

#define CHECK(cond) \
  do { \
    if (!(cond)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
      exit(1); \
    } \
  } while (0)

static struct gs_meter meter;
static struct gs_queue queues[STREAMS];
static struct gs_clock clocks[1];
static uint64_t now = 1000000000000u, device_free, truth, bare;
static uint64_t tail[STREAMS];                 /* when the stream's work is done */
static uint64_t submitted[DEPTH], submissions; /* ends of the last kernels: a full queue blocks a launch */
static uint64_t bracket[STREAMS][2];
static const uint64_t skew = 123456789; /* device clock = host clock - skew */
static int metered = 1;
static uint64_t hold = 12000; /* for how long barriers hold a stream; 0: the driver has none */

/* Leases alternate with another tenant, whose work is always on the device, or only during its own lease and shortly
 * after. */
enum { PERIOD = 42000000, LEASE = 20000000, GAP = 1000000, SLICE = 2000000, NOTICE = 70000 };
static enum { ALONE, FOREIGN_ALWAYS, FOREIGN_IN_TURN } foreign;
static uint64_t noticed; /* the gate thread has seen all events up to here */

static bool foreign_at(uint64_t t) {
  uint64_t at = t % PERIOD;
  return foreign == FOREIGN_ALWAYS || (foreign == FOREIGN_IN_TURN && (at >= LEASE + GAP || at < SLICE));
}

static bool held_at(uint64_t t) { return foreign == ALONE || t % PERIOD < LEASE; }
static uint32_t lease_at(uint64_t t) {
  return foreign == ALONE ? 1 : 1 + 2 * (uint32_t)(t / PERIOD % 1000000) + !held_at(t);
}

/* The time at which the device will have done `ns` of our work, from `begin` on. */
static uint64_t worked(uint64_t begin, uint64_t ns) {
  if (foreign == ALONE)
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

/* Now and then the thread is preempted, at any point. */
static uint32_t stolen_in; /* one in this many calls, 0: never */
static uint64_t seed = 1;

static uint64_t chance(uint64_t below) {
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

/* The gate thread and the launching thread notice a changed lease word soon; foreign work within one poll. */
static void notice(void) {
  const uint64_t change[] = {0, SLICE, LEASE, PERIOD};
  if (foreign == ALONE)
    return;
  if (noticed == 0)
    noticed = now;
  for (uint64_t period = noticed / PERIOD * PERIOD; period <= now; period += PERIOD)
    for (int i = 0; i < 3; i++) {
      uint64_t at = period + change[i], seen = at + NOTICE;
      uint32_t others = held_at(at) ? foreign_at(at) : 1;
      if (seen <= noticed || seen > now || others == meter.others)
        continue;
      gs_meter_turn(&meter, others, held_at(at) ? seen : seen + GS_METER_OVERLAP_NS);
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
  tail[s] = device_free = worked(begin, ns);
  submitted[submissions++ % DEPTH] = tail[s];
  truth += ns;
}

static void take_sample(int s) {
  if (queues[s].sampled && bracket[s][1] <= now)
    gs_meter_sampled(&meter, &queues[s],
                     (double)(bracket[s][1] - bracket[s][0]) - (queues[s].sampled_held != GS_NOT_HELD ? EVENT_GPU : 0),
                     bracket[s][0], 1);
}

static void reap(void) {
  notice();
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
    if (best < 0)
      return;
    gs_clock_not_before(&clocks[0], done - skew, gs_meter_oldest(&queues[best])->recorded);
    gs_clock_not_after(&clocks[0], done - skew, now);
    gs_meter_reap(&meter, &queues[best], gs_clock_host(&clocks[0], done - skew), lease_at(now), 1);
  }
}

static void mark(int s, bool start) {
  struct gs_mark *mark;
  reap();
  mark = gs_meter_mark(&meter, &queues[s], start, now);
  if (!mark)
    return;
  mark->event = (void *)(uintptr_t)event(s);
  mark->recorded_by = now;
  mark->state = GS_MARK_RECORDED;
  take_sample(s);
}

/* As the gate does: the open segment ends before the wait for a lease, and little is in flight then. */
static void gate(int s) {
  uint64_t bound = 2000000;
  if (foreign == ALONE)
    return;
  for (;;) {
    double inflight = 0;
    if (!held_at(now)) {
      if (metered && queues[s].open.launches > 0)
        mark(s, false);
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

static void launch(int s, uint64_t key, uint64_t ns) {
  gate(s);
  if (!metered) {
    kernel(s, ns);
    return;
  }
  struct gs_function *function = gs_meter_function(&meter, key);
  if (gs_meter_close_first(&meter, &queues[s], function, now)) {
    mark(s, false);
    function = gs_meter_function(&meter, key);
  }
  uint64_t planned = now, began;
  uint32_t plan = gs_meter_launch(&meter, &queues[s], function, now, lease_at(now));
  if (plan & GS_PLAN_START)
    mark(s, true);
  if (plan & GS_PLAN_SAMPLE)
    take_sample(s);
  if (plan & GS_PLAN_SAMPLE && queues[s].sampled) {
    plan &= ~(uint32_t)GS_PLAN_SAMPLE;
    queues[s].bracketing = false;
  }
  if (plan & GS_PLAN_SAMPLE) {
    if (hold && plan & GS_PLAN_HOLD) {
      call(BARRIERS);
      tail[s] = (tail[s] > now ? tail[s] : now) + hold;
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

static void sync_stream(int s) {
  if (metered && gs_meter_check_before_sync(&meter, &queues[s], now))
    mark(s, false);
  uint64_t began = now;
  if (tail[s] > now)
    now = tail[s];
  call(5000); /* the thread wakes up, or gets its processor back */
  if (!metered)
    return;
  reap();
  take_sample(s);
  gs_meter_synced(&meter, &queues[s], now, (struct gs_waited){began, now, 1, true});
}

/* The program waits for the device without a call that the meter is told of: it looks at memory, say. */
static void wait_unseen(int s) {
  if (tail[s] > now)
    now = tail[s];
  call(1000);
}

static void wait_for(int s, bool unseen) {
  if (unseen)
    wait_unseen(s);
  else
    sync_stream(s);
}

static void run(const char *pattern, uint64_t ns, int n) {
  if (!strcmp(pattern, "turns"))
    foreign = FOREIGN_ALWAYS;
  if (!strcmp(pattern, "turnsshort") || strstr(pattern, "turns:") || !strcmp(pattern, "manyturns"))
    foreign = FOREIGN_IN_TURN;
  const char *host = strstr(pattern, "host"), *sync = strstr(pattern, "sync");
  bool uneven = !strncmp(pattern, "uneven", 6);
  stolen_in = strstr(pattern, "starved") ? 400 : 0;
  /* streams of a program that alone cannot fill the device */
  for (int i = 0; !strncmp(pattern, "many", 4) && i < n; i++) {
    launch((int)chance(STREAMS), 0x1000 + 16 * chance(4), ns / 10 + chance(ns * 18 / 10));
    now += chance(ns * 2);
  }
  for (int i = 0; uneven && i < n; i++) {
    launch(0, 0x1000, ns / 10 + chance(ns * 18 / 10)); /* ns on average */
    if (host)
      now += ns / 2 + chance(ns * 2);
    if (sync)
      sync_stream(0);
  }
  for (int i = 0; !uneven && strncmp(pattern, "ra", 2) && strncmp(pattern, "many", 4) && i < n; i++) {
    bool longer = i % 10 == 9 && (!strcmp(pattern, "mix") || !strcmp(pattern, "mixhost"));
    launch(!strncmp(pattern, "two", 3) ? i & 1 : 0, longer ? 0x2000 : 0x1000, longer ? 40 * ns : ns);
    if (!strcmp(pattern, "host"))
      now += 20000;
    if (!strcmp(pattern, "sync"))
      sync_stream(0);
    if (!strcmp(pattern, "mixhost") && i % 100 == 99) {
      sync_stream(0);
      now += 300000;
    }
    if (!strcmp(pattern, "twostall") && i % 700 == 699)
      now += 5000000;
    if (!strcmp(pattern, "twohost"))
      now += 4000;
    if (!strcmp(pattern, "burst") && i % 400 == 399)
      now += 4000000;
  }
  /* "unseen" in the name: no wait is seen */
  const char *numbers = strchr(pattern, ':');
  const bool unseen = strstr(pattern, "unseen") != NULL;
  /* random:STREAMS:SEED: lengths of five functions with heavy tails, waits and pauses */
  unsigned long streams = 0, start = 0;
  if (!strncmp(pattern, "random", 6) && numbers && sscanf(numbers, ":%lu:%lu", &streams, &start) == 2) {
    seed = start;
    for (int i = 0; i < n; i++) {
      int s = (int)chance(streams);
      uint64_t function = chance(5), longer = chance(64) == 0 ? 20 + chance(200) : 1 + chance(3);
      launch(s, 0x1000 + 16 * function, (ns + function * ns / 2) * longer);
      if (chance(3) == 0)
        wait_for(s, unseen);
      if (chance(4) == 0)
        now += chance(300000);
    }
  }
  /* rare:COUNT:LONG_NS: after COUNT launches a long one; "rarebatch" waits for the long ones only */
  unsigned long every = 0, longest = 0;
  if (!strncmp(pattern, "rare", 4) && numbers && sscanf(numbers, ":%lu:%lu", &every, &longest) == 2)
    for (int i = 0; i < n; i++) {
      bool longer = (unsigned long)i % (every + 1) == every;
      launch(0, 0x1000, longer ? longest : ns);
      if (longer || strncmp(pattern, "rarebatch", 9) != 0)
        wait_for(0, unseen);
    }
  /* rawatched:HITS:LONG_NS: short ones until so many calls took longer than a launch does, then long ones until one does */
  unsigned long hits = 0, seen = 0;
  bool lengthy = false;
  if (!strncmp(pattern, "rawatched", 9) && numbers && sscanf(numbers, ":%lu:%lu", &hits, &longest) == 2)
    for (int i = 0; i < n; i++) {
      uint64_t called = now;
      launch(0, 0x1000, lengthy ? longest : ns);
      seen += now - called > LAUNCH + EVENT;
      if (seen == (lengthy ? 1 : hits)) {
        lengthy = !lengthy;
        seen = 0;
      }
      wait_unseen(0);
      now += 15000;
    }
  /* sizes:COUNT: one function with so many classes of grids, awaited each time */
  unsigned long sizes = 0, most = 0;
  if (!strncmp(pattern, "rasizes", 7) && numbers && sscanf(numbers, ":%lu", &sizes) == 1)
    for (int i = 0; i < n; i++) {
      uint64_t size = 3 + chance(sizes);
      launch(0, 0x7f0000001000 ^ size << 56, ns + ns * size / 16);
      if (chance(2))
        now += 20000;
      if (chance(2))
        sync_stream(0);
    }
  /* rashrink:LONG_NS: one function takes so long at first, and later less */
  if (!strncmp(pattern, "rashrink", 8) && numbers && sscanf(numbers, ":%lu", &most) == 1)
    for (int i = 0; i < n; i++) {
      launch(0, 0x1000, i < n / 20 ? most : ns);
      wait_for(0, unseen);
    }
  /* rastep:LONG_NS: long ones until a bracket may be due, then short ones until there was one */
  if (!strncmp(pattern, "rastep", 6) && numbers && sscanf(numbers, ":%lu", &most) == 1) {
    for (int i = 0; i < n; i++) {
      uint64_t interval = (uint64_t)GS_METER_SAMPLE_NS << queues[0].agreed;
      launch(0, 0x1000, metered && i > 100 && now - queues[0].last_sample < interval * 3 / 4 ? most : ns);
      wait_for(0, unseen);
      if (strstr(pattern, "host"))
        now += 5000;
    }
  }
  /* rarely:PERIOD_NS: a launch every so often, and no wait */
  unsigned long period = 0;
  if (!strncmp(pattern, "rarely", 6) && numbers && sscanf(numbers, ":%lu", &period) == 1)
    for (uint64_t next = now; n > 0; n--, next += period) {
      if (now < next)
        now = next;
      launch(0, 0x1000, ns);
    }
  for (int s = 0; s < STREAMS; s++)
    sync_stream(s);
}

static void restart(void) {
  memset(&meter, 0, sizeof meter);
  memset(queues, 0, sizeof queues);
  memset(clocks, 0, sizeof clocks);
  memset(tail, 0, sizeof tail);
  memset(submitted, 0, sizeof submitted);
  device_free = truth = submissions = noticed = 0;
  now = 1000000000000u;
  seed = 1;
}

static void check_timeline(void) {
  restart();
  CHECK(gs_timeline_add(&meter, 100, 200, 100, 1) == 100);
  CHECK(gs_timeline_add(&meter, 150, 250, 100, 1) == 50);
  CHECK(gs_timeline_add(&meter, 300, 400, 20, 1) == 20); /* sparse */
  CHECK(gs_timeline_add(&meter, 300, 400, 30, 1) == 30); /* two sparse segments add up */
  CHECK(gs_timeline_add(&meter, 300, 400, 80, 1) == 50); /* at most 1 ns per ns */
  CHECK(gs_timeline_add(&meter, 50, 500, 450, 1) == 450 - 150 - 100);
  CHECK(gs_timeline_add(&meter, 40, 45, 100, 1) == 5);
  CHECK(gs_timeline_add(&meter, 10, 10, 100, 1) == 0);
  CHECK(gs_timeline_add(&meter, 600, 700, 50, 0.5) == 50);
  CHECK(gs_timeline_add(&meter, 600, 700, 50, 0.5) == 0); /* of half the device, two streams together get half */
  CHECK(gs_timeline_add(&meter, 600, 700, 50, 1) == 50);
  /* No more is counted than the time, also where there is no place to remember it. */
  restart();
  for (uint64_t i = 0; i < GS_METER_PIECES; i++)
    CHECK(gs_timeline_add(&meter, 1000 + 20 * i, 1010 + 20 * i, 10, 1) == 10);
  CHECK(gs_timeline_add(&meter, 100, 200, 100, 1) == 100);
  for (uint64_t i = 0; i < 900; i++)
    gs_timeline_add(&meter, 100 + i, 1000, 900, 1);
  CHECK(meter.busy <= 20 * GS_METER_PIECES + 1000 - 100);
  /* Random segments never count more than the wall time they cover, however many pieces were dropped. */
  restart();
  uint64_t high = 0;
  for (int i = 0; i < 20000; i++) {
    chance(1);
    uint64_t from = (uint64_t)i * 50 + (seed >> 33) % 20000, to = from + 1 + (seed >> 20) % 3000;
    gs_timeline_add(&meter, from, to, (double)((seed >> 7) % 4000), 1);
    if (to > high)
      high = to;
    CHECK(meter.pieces <= GS_METER_PIECES);
    for (uint32_t k = 0; k + 1 < meter.pieces; k++)
      CHECK(meter.piece[k].to <= meter.piece[k + 1].from);
  }
  CHECK(meter.busy > 0 && meter.busy <= (double)high);
}

static void check_away(void) {
  restart();
  gs_meter_turn(&meter, 1, 200);
  gs_meter_turn(&meter, GS_METER_AWAY, 300);
  gs_meter_turn(&meter, 0, 500);
  CHECK(gs_meter_resident(&meter, 100, 600, 1) == 100 + 50 + 0 + 100);
}

static void check_books(void) {
  /* The work in flight returns to zero, whatever happened to the marks. */
  restart();
  for (int i = 0; i < 500; i++)
    launch(0, 0x1000 + 16 * (uint64_t)(i % 20), 30000);
  CHECK(meter.inflight > 0);
  while (gs_meter_oldest(&queues[0]))
    gs_meter_lose(&meter, &queues[0], now);
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){0});
  CHECK(meter.inflight == 0 && meter.unobserved == 0 && meter.marks == 0 && queues[0].inflight == 0);
  /* A refused launch leaves nothing behind. */
  struct gs_function *function = gs_meter_function(&meter, 0x9990);
  double estimate = function->estimate;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_undo(&meter, &queues[0], function, estimate);
  CHECK(meter.inflight == 0 && meter.unobserved == 0 && queues[0].open.launches == 0);
}

static void check_unknown(void) {
  /* After a few launches, a function of unknown duration fills the bound, however long its kernels will take. */
  restart();
  struct gs_function *function = gs_meter_function(&meter, 0x4440);
  int n = 0;
  while (gs_meter_inflight(&meter, 2e6) <= 2e6 && n < 100) {
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    n++;
  }
  CHECK(n <= GS_METER_RISK_SHARE + 1);
}

static void check_gap(void) {
  /* A new function after a pause: the pause does not count as its time. */
  restart();
  run("b2b", 20000, 2000);
  for (int i = 0; i < 20; i++)
    launch(0, 0x1000, 20000);
  now += 30000000;
  for (int i = 0; i < 50; i++)
    launch(0, 0x7000, 800000);
  sync_stream(0);
  CHECK(meter.busy < 1.02 * (double)truth && meter.busy > 0.98 * (double)truth);
}

static void check_foreign(void) {
  /* A segment during which the device was in foreign use is charged by estimate and not used for learning. */
  restart();
  run("b2b", 20000, 2000);
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  double estimate = function->estimate, busy = meter.busy;
  for (int i = 0; i < 10; i++)
    gs_meter_launch(&meter, &queues[0], function, now, 1);
  CHECK(gs_meter_mark(&meter, &queues[0], false, now));
  gs_meter_reap(&meter, &queues[0], now + 50000000, 3, 1);
  CHECK(function->estimate == estimate);
  CHECK(meter.busy - busy > 0.9 * 200000 && meter.busy - busy < 1.1 * 200000);
}

/* 25 launches of 20 us, known to the meter, and a mark that completes with them; returns the charge and whether the
 * estimate held. */
static double known_segment(uint32_t lease, uint32_t lease_now, uint64_t delay, uint64_t others_ran) {
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  double busy = meter.busy;
  uint64_t done = (now > tail[0] ? now : tail[0]) + 500000 + others_ran;
  for (int i = 0; i < 25; i++)
    gs_meter_launch(&meter, &queues[0], function, now, lease);
  struct gs_mark *mark = gs_meter_mark(&meter, &queues[0], false, now);
  CHECK(mark);
  now += delay;
  mark->recorded_by = now;
  tail[0] = done > now ? done : now;
  gs_meter_reap(&meter, &queues[0], tail[0], lease_now, 1);
  CHECK(function->estimate > 19000 && function->estimate < 21000);
  return meter.busy - busy;
}

static void check_late_record(void) {
  /* The thread is preempted just before it records a mark: the device idles, however late the mark completes. */
  restart();
  run("b2b", 20000, 2000);
  known_segment(1, 1, 2000, 0);
  for (int i = 0; i < 10; i++)
    CHECK(known_segment(1, 1, 10000000, 0) < 1.05 * 500000);
}

static void check_tail(void) {
  /* Work of the previous holder continues for a slice of the device when a lease begins. */
  restart();
  run("b2b", 20000, 2000);
  known_segment(3, 3, 2000, 0);
  now = tail[0] + 20000000;
  CHECK(known_segment(5, 5, 2000, 0) < 1.05 * 500000);
  CHECK(known_segment(5, 5, 2000, 2000000) < 1.05 * 500000);
}

static void check_no_lease(void) {
  /* The daemon is gone: the word remains "not leased", others may use the device at any time. */
  restart();
  run("b2b", 20000, 2000);
  known_segment(4, 4, 2000, 0);
  now += 20000000;
  for (int i = 0; i < 10; i++)
    CHECK(known_segment(4, 4, 2000, 2000000) < 1.05 * 500000);
}

static void check_reuse(void) {
  restart();
  run("b2b", 20000, 2000);
  CHECK(gs_meter_function(&meter, 0x1000)->observed >= GS_METER_TRUSTED);
  gs_meter_forget_functions(&meter);
  CHECK(gs_meter_function(&meter, 0x1000)->observed == 0);
  /* More functions than the table holds: every look-up still returns an entry of that key. */
  for (uint64_t key = 1; key < 10000; key++)
    CHECK(gs_meter_function(&meter, key << 8)->key == key << 8);
}

static void check_new_stream(void) {
  /* Launches of other streams before a stream's first launch do not count as its time. */
  restart();
  run("b2b", 20000, 2000);
  memset(&queues[1], 0, sizeof queues[1]); /* run() waited for it too */
  launch(1, 0x3000, 100000);
  now = tail[1];
  reap();
  double estimate = gs_meter_function(&meter, 0x3000)->estimate;
  CHECK(estimate > 90000 && estimate < 110000);
}

static void check_expected_end(void) {
  /* Two kernels with a mark each, delayed together: the second completes its own duration after the first. */
  restart();
  run("b2b", 1000000, 200);
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  for (int i = 0; i < 2; i++) {
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    CHECK(gs_meter_mark(&meter, &queues[0], false, now));
  }
  uint64_t end = now + 2800000;
  /* the first is late: it may end soon, and then the second follows */
  CHECK(gs_queue_expected_end(&meter, &queues[0], now + 1500000) >= now + 1500000 + GS_METER_OVERDUE_NS + 900000);
  gs_meter_reap(&meter, &queues[0], end - 1000000, 1, 1);
  for (uint64_t left = 900000; left > 0; left -= 100000) {
    uint64_t expected = gs_queue_expected_end(&meter, &queues[0], end - left);
    CHECK(expected > end - 60000 && expected < end + 60000);
  }
  CHECK(gs_queue_expected_end(&meter, &queues[0], end + 100000) >= end + 100000 + GS_METER_OVERDUE_NS);
}

static double since(double *busy) {
  double before = *busy;
  return (*busy = meter.busy) - before;
}

static void check_late_waits(void) {
  /* A mark is recorded behind a launch of 20 us that takes 400 ms. */
  restart();
  run("b2b", 20000, 2000);
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  uint64_t began = now;
  double busy = meter.busy;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  struct gs_mark *mark = gs_meter_mark(&meter, &queues[0], false, now);
  CHECK(mark);
  mark->state = GS_MARK_RECORDED;
  /* Whoever asks for it sees the device at work, and so much is charged at once. */
  gs_meter_unready(&meter, &queues[0], now + 100000, 1);
  CHECK(since(&busy) == 0);
  gs_meter_unready(&meter, &queues[0], now + 100000000, 1);
  CHECK(since(&busy) == 100000000);
  gs_meter_unready(&meter, &queues[0], now + 300000000, 1);
  CHECK(since(&busy) == 200000000);
  /* What a wait has seen is left to the mark while there is one: it knows when the work was done, and the thread that
   * waits may come late. */
  gs_meter_seen_busy(&meter, &queues[0], (struct gs_waited){began, now + 1000000000, 1, true});
  CHECK(since(&busy) == 0);
  gs_meter_reap(&meter, &queues[0], now + 400000000, 1, 1);
  CHECK(since(&busy) > 99990000);
  gs_meter_seen_busy(&meter, &queues[0], (struct gs_waited){began, now + 1000000000, 1, true});
  CHECK(since(&busy) == 0);
  /* The stream was idle from the mark until the next launch. */
  gs_meter_launch(&meter, &queues[0], function, now + 700000000, 1);
  gs_meter_seen_busy(&meter, &queues[0], (struct gs_waited){began, now + 1000000000, 1, true});
  CHECK(since(&busy) == 0);
  /* Without a mark, what a wait has seen is all that is known of the launches before it. */
  gs_meter_seen_busy(&meter, &queues[0], (struct gs_waited){now + 710000000, now + 1000000000, 1, true});
  CHECK(since(&busy) == 290000000);
}

static void check_careful(void) {
  /* A wait of 20 us returns 60 us late: marks, which cost time, are recorded for so long that work of that length is
   * noticed even if there is little of it, and no longer. */
  restart();
  run("sync", 20000, 2000);
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  now += 80000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){now - 80000, now, 1, true});
  CHECK(gs_meter_careful(&meter, now + 5000000));
  CHECK(!gs_meter_careful(&meter, now + 7000000));
}

static void check_clocks(void) {
  /* Known kernels of 10 ms in each of two streams in turn, waited for at once. By the clocks those of one are done 0.5 us too
   * early, and so they seem to begin in the pause before, in which the other one had the device. */
  restart();
  for (int i = 0; i < 40; i++) {
    struct gs_queue *queue = &queues[i % 2];
    struct gs_function *function = gs_meter_function(&meter, 0x1000);
    double busy = meter.busy;
    function->estimate = 10000000;
    function->observed = GS_METER_TRUSTED;
    gs_meter_launch(&meter, queue, function, now, 1);
    struct gs_mark *mark = gs_meter_mark(&meter, queue, false, now + 2000);
    CHECK(mark);
    mark->state = GS_MARK_RECORDED;
    gs_meter_reap(&meter, queue, now + (i % 2 ? 10000500 : 9999500), 1, 1);
    CHECK(i < 2 || since(&busy) >= 9990000);
    now += 10020000;
    gs_meter_synced(&meter, queue, now, (struct gs_waited){0});
  }
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "self")) {
    check_careful();
    check_timeline();
    check_away();
    check_clocks();
    check_books();
    check_unknown();
    check_gap();
    check_foreign();
    check_late_record();
    check_tail();
    check_no_lease();
    check_reuse();
    check_new_stream();
    check_expected_end();
    check_late_waits();
    return 0;
  }
  if (argc < 3)
    return 2;
  uint64_t ns = strtoull(argv[2], NULL, 10), began = now;
  int n = argc > 3 ? atoi(argv[3]) : 20000;
  hold = argc > 4 ? strtoull(argv[4], NULL, 10) : hold;
  metered = 0;
  run(argv[1], ns, n);
  bare = now - began;
  metered = 1;
  restart();
  began = now;
  run(argv[1], ns, n);
  printf("%llu %.0f %llu %llu\n", (unsigned long long)truth, meter.busy, (unsigned long long)(now - began),
         (unsigned long long)bare);
  return 0;
}
