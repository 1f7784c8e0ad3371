/* The rules for what marks show of the launches before them. */
#include "meter_rules.h"

#include <stddef.h>

static const double ms = 1000000;

static void check_again(void) {
  /* A chosen launch that was short, and alone where that was not known: the next one is bracketed in its place, and
   * the stream is known to be empty. */
  fresh();
  struct gs_function *function = known(0x1000, 60000);
  queues[0].again = 7;
  queues[0].bracketing = true;
  queues[0].last_bracket = now;
  marked(0, function, 1, now + 2000);
  done(0, now + 3000);
  CHECK(queues[0].again == 7);
  CHECK(queues[0].end == now + 3000 && meter.end == now + 3000);
  fresh();
  function = known(0x1000, 60000);
  marked(0, function, 1, now + 2000);
  done(0, now + 3000);
  CHECK(queues[0].again == 0);
}

static void check_carried(void) {
  /* Two launches of 20 us had room for 5 us. What is missing is made up where there is room, as far as lengths differ;
   * clocks are not exact. */
  for (double spread = 0; spread <= 10000; spread += 2000) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    function->spread = spread;
    marked(0, function, 2, now + 5000);
    CHECK(done(0, now + 5000) <= 5000 + GS_METER_CLOCK_NS);
    now += 10000;
    marked(0, function, 2, now + 200000);
    double missing = 40000 - 5000 - GS_METER_CLOCK_NS, most = GS_METER_KNEE * spread;
    CHECK(near(done(0, now + 200000), 40000 + (most < missing ? most : missing), 1));
    CHECK(meter.balance == 0);
  }
}

static void check_made_up(void) {
  /* Three launches make up for what three may take beyond the mean: twice what they differ by, or twice the mean. */
  enum { ALL_KINDS = 2 };
  static const struct {
    double balance, spread;
    uint32_t kinds;
    double made_up, left;
  } cases[] = {{5000, 3000, 1, 5000, 0},        {20000, 3000, 1, 18000, 2000},         {1e6, 3000, 1, 18000, 12000},
               {1e6, 50000, 1, 120000, 200000}, {1e6, 3000, ALL_KINDS, 120000, 80000}, {130000, 0, 1, 0, 0}};
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    fresh();
    struct gs_segment segment = {.launches = 3, .kinds = cases[i].kinds, .kind = {{known(0x1000, 20000), 0x1000, 3}}};
    segment.kind[0].function->spread = cases[i].spread;
    meter.balance = cases[i].balance;
    CHECK(near(gs_meter_fit(&meter, &segment, 60000, 0, ms), 60000 + cases[i].made_up, 1));
    CHECK(near(meter.balance, cases[i].left, 1));
  }
  /* What is seen to be longer than the mean is charged: it need not be made up for. */
  for (uint32_t lease = 1; lease <= 3; lease += 2) /* others may have been there, but were not */
    for (double balance = 10000; balance <= 50000; balance += 40000) {
      fresh();
      meter.balance = balance;
      marked(0, known(0x1000, 100000), 1, now + 2000);
      gs_meter_reap(&meter, &queues[0], now + 130000, lease, 1);
      CHECK(near(meter.busy, 130000, 1) && meter.balance == (balance > 30000 ? balance - 30000 : 0));
    }
}

static void check_taught(void) {
  enum { PLAIN, RESIDENTS, UNSURE, SHARED, CLOUDED, CASES };
  for (int i = 0; i < CASES; i++) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    function->weight = 4;
    if (i == SHARED) /* others' launches come between */
      for (int k = 0; k < 4; k++)
        gs_meter_launch(&meter, &queues[1], function, now, 1);
    if (i == UNSURE) /* a launch of it may have come before the mark in front */
      queues[0].open.unsure = true;
    queues[0].clouded = i == CLOUDED; /* a copy went into the stream */
    marked(0, function, 4, now + 2000);
    double before = meter.busy;
    gs_meter_reap(&meter, &queues[0], now + 100000, 1, i == RESIDENTS ? 2 : 1);
    CHECK((function->estimate != 20000) == (i == PLAIN));
    if (i == PLAIN)
      CHECK(near(function->estimate, 22545, 200) && near(meter.busy - before, 100000, 1));
    if (i == CLOUDED)
      CHECK(near(meter.busy - before, 80000, 1)); /* not what the copy took */
    if (i == SHARED)
      CHECK(near(meter.busy - before, 99280, 10)); /* what was seen, and a little of what came before */
  }
}

static void check_taught_by_one(void) {
  for (int others = 0; others < 2; others++) {
    fresh();
    struct gs_function *function = known(0x1000, 300000);
    function->weight = 4;
    if (others)
      gs_meter_launch(&meter, &queues[1], function, now, 1);
    marked(0, function, 1, now + 2000);
    done(0, now + 400000);
    CHECK((function->estimate == 300000) == others);
  }
}

static void check_far_launch(void) {
  /* A launch that takes far longer than the mean is charged as it was seen, is not part of the mean, and pays for
   * looking for others; as it was chosen out of 3, it stands for those that nobody saw. */
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  queues[0].again = 3;
  queues[0].bracketing = true;
  queues[0].last_bracket = now;
  meter.unseen_since = now - 1000000000;
  meter.unseen_until = now + 1000000000;
  marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 10000000), 10 * ms + 2 * 9.98 * ms, 10));
  CHECK(function->estimate == 20000);
  double once = (9.998 * ms - 20000 - GS_METER_GAP_NS - 4 * 20000) / 2, all = 9.98 * ms * 3 / 2;
  CHECK(near(meter.purse, once + all, 3000));
  /* Somebody saw all that was launched before. */
  fresh();
  function = known(0x1000, 20000);
  queues[0].again = 5;
  queues[0].bracketing = true;
  queues[0].last_bracket = meter.unseen_until = now;
  marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 10000000), 10 * ms, 10));
  /* Of the time in which a copy was there as well, only the purse learns. */
  fresh();
  function = known(0x1000, 20000);
  queues[0].clouded = true;
  marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 10000000), 20000, 1));
  CHECK(near(meter.purse, once, 3000));
  /* Nobody saw the stream idle where it was believed to be. */
  fresh();
  function = known(0x1000, 20000);
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_launch(&meter, &queues[0], function, now + 10000000, 1);
  CHECK(meter.unseen_since == now + 20000 && meter.unseen_until > now + 100000000);
  fresh();
  function = known(0x1000, 20000);
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_synced(&meter, &queues[0], now + 20000, (struct gs_waited){0});
  gs_meter_launch(&meter, &queues[0], function, now + 10000000, 1);
  CHECK(meter.unseen_since == 0);
}

static void check_begin(void) {
  /* The thread lost its processor in the launch: the device may have been done long before the mark. */
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  queues[0].made = now + 10000000;
  marked(0, function, 1, now + 10002000);
  CHECK(near(done(0, now + 10012000), 20000, 1));
  /* It lost it before it recorded the mark. */
  fresh();
  queues[0].made = now + 2000;
  marked(0, known(0x1000, 20000), 1, now + 10000000);
  CHECK(near(done(0, now + 10001000), 20000, 1));
  /* The work began in the launch, whose call took 10 us. */
  fresh();
  queues[0].made = now + 10000;
  marked(0, known(0x1000, 20000), 1, now + 12000);
  CHECK(near(done(0, now + 108000), 108000 - 7000, 1));
  /* The driver loaded the function first. */
  fresh();
  function = gs_meter_function(&meter, 0x1000);
  queues[0].made = now + 5000000;
  marked(0, function, 1, now + 5002000);
  queues[0].bracketing = false;
  CHECK(near(done(0, now + 5100000), 100000, 1));
}

/* Six launches of 20 us, a mark recorded `late` after them until `by`, and done at `end`; all after now. */
static double six(uint64_t late, uint64_t by, uint64_t end) {
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  function->weight = 4;
  uint64_t began = now;
  for (int i = 0; i < 6; i++)
    gs_meter_launch(&meter, &queues[0], function, now, 1);
  now += late;
  marked(0, function, 0, began + by);
  return done(0, began + end);
}

static void check_whole(void) {
  /* The mark was recorded while there was work: all of the time is charged, and teaches. */
  CHECK(near(six(2000, 4000, 180000), 180000, 1) && gs_meter_function(&meter, 0x1000)->estimate > 25000);
  /* It may have been recorded long after: what it shows, but no more. */
  CHECK(near(six(0, 60000, 180000), 120000, 1));
  /* There may have been no work left. */
  CHECK(near(six(85000, 87000, 140000), 120000, 1));
  /* Later than expected, but small errors of many add up: what was seen is not known to be the last ones only. */
  CHECK(near(six(85000, 87000, 207000), 120000, 1));
  CHECK(gs_meter_function(&meter, 0x1000)->estimate == 20000);
  /* The last ones took long: what was done before counts as well. */
  CHECK(near(six(85000, 87000, 10000000), 10000000, 3000));
  CHECK(near(meter.busy, 87000 + 9913000, 1));
  /* The stream was empty in between. */
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  now += 200000;
  marked(0, function, 4, now + 2000);
  CHECK(near(done(0, now + 82000), 100000, 1));
}

/* What is charged for four launches of 20 us that took 10 us; their mark was recorded by 60 us after they were made, and
 * `behind` before the work in front of them was done. It teaches if it has shown all of them. */
static double queued(int64_t behind, bool others) {
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  uint64_t before_done = now + 60000 + (uint64_t)behind;
  marked(0, known(0x2000, 20000), 4, now + 2000);
  if (others)
    gs_meter_launch(&meter, &queues[1], known(0x2000, 20000), now, 1);
  marked(0, function, 4, now + 60000);
  done(0, before_done);
  function->weight = 4;
  return done(0, before_done + 10000);
}

static void check_queued(void) {
  /* All was launched before the first of them could begin, so that they took all of the time. */
  CHECK(near(queued(0, false), 10000, 1) && near(gs_meter_function(&meter, 0x1000)->estimate, 11111, 1));
  CHECK(near(queued(-1, false), 10000 + GS_METER_CLOCK_NS, 1)); /* the last ones may have come later: not all of it, */
  CHECK(gs_meter_function(&meter, 0x1000)->estimate == 20000);
  CHECK(near(queued(0, true), 10000 + GS_METER_CLOCK_NS, 1)); /* or other streams had the device */
  CHECK(gs_meter_function(&meter, 0x1000)->estimate == 20000);
}

static void check_lost(void) {
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  marked(0, function, 3, now);
  gs_meter_lose(&meter, &queues[0], now + 1000000);
  CHECK(near(meter.busy, 60000, 1));
  fresh();
  function = known(0x1000, 20000);
  marked(0, function, 3, now);
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_lose_all(&meter, &queues[0], now + 1000000, (struct gs_waited){0});
  CHECK(near(meter.busy, 80000, 1) && queues[0].open.launches == 0 && meter.marks == 0);
  /* The call that ended the context has waited for longer than was known, or lengths are not known at all. */
  for (int unknown = 0; unknown < 2; unknown++) {
    fresh();
    function = unknown ? gs_meter_function(&meter, 0x1000) : known(0x1000, 20000);
    marked(0, function, 1, now);
    gs_meter_lose_all(&meter, &queues[0], now + 5000000, (struct gs_waited){now + 10000, now + 5000000, 1, true});
    CHECK(near(meter.busy, 5 * ms, 20000) && queues[0].inflight == 0);
  }
}

static void check_fill(void) {
  fresh();
  CHECK(gs_timeline_add(&meter, now, now + 100000, 100000, 1) == 100000);
  CHECK(gs_timeline_fill(&meter, now, now + 200000, 60000) == 60000);
  CHECK(near(gs_timeline_fill(&meter, now, now + 200000, 60000), 40000, 1));
  CHECK(near(gs_timeline_fill(&meter, now, now + 200000, 60000), 0, 1));
  fresh(); /* also where only a part of the time is known to be free */
  gs_timeline_add(&meter, now, now + 100000, 50000, 1);
  CHECK(near(gs_timeline_fill(&meter, now, now + 200000, 60000), 60000, 1));
  CHECK(near(gs_timeline_fill(&meter, now, now + 100000, 100000), 30000, 1)); /* each part in proportion */
  CHECK(near(gs_timeline_fill(&meter, now, now + 200000, 200000), 60000, 1));
  /* What was charged there before was other work. */
  fresh();
  gs_timeline_add(&meter, now, now + 100000, 100000, 1);
  marked(0, known(0x1000, 20000), 2, now + 200000);
  CHECK(near(done(0, now + 200000), 40000, 1));
}

static void check_unknown_length(void) {
  fresh();
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  marked(0, function, 1, now + 2000);
  queues[0].bracketing = false;
  CHECK(near(done(0, now + 300000), 300000, 2) && near(function->estimate, 300000, 2) && !function->shared);
}

static void check_unknown_beside(void) {
  /* Of a time of many slices an even part is right but for one: that is not corrected. */
  for (uint64_t took = 4 * GS_METER_SLICE_NS; took <= 4 * GS_METER_SLICE_NS + 1; took++) {
    fresh();
    gs_meter_turn(&meter, 1, now);
    marked(0, gs_meter_function(&meter, 0x1000), 1, now + 2000);
    bool later = took <= 4 * GS_METER_SLICE_NS;
    CHECK(near(done(0, now + took), (double)took / 2, 2) && meter.unsettled == later);
  }
  /* What was charged before it was done is not charged again. */
  fresh();
  gs_meter_turn(&meter, 1, now);
  marked(0, gs_meter_function(&meter, 0x1000), 1, now + 2000);
  gs_meter_turn(&meter, 0, now + 1000000);
  gs_meter_unready(&meter, &queues[0], now + 9000000, 1);
  CHECK(near(meter.busy, 8.8 * ms, 5000));
  done(0, now + 9500000);
  CHECK(near(meter.busy, 9 * ms, 1000) && near(meter.pending[0].charged, 9 * ms, 1000));
}

/* What is charged later than it was shown is the same. */
static void check_later(void) {
  enum { EXCESS, STALLED, BEHIND, CASES };
  for (int i = 0; i < CASES; i++) {
    fresh();
    struct gs_function *function = i == BEHIND ? gs_meter_function(&meter, 0x1000) : known(0x1000, 100000);
    gs_meter_turn(&meter, 1, now);
    queues[0].open.excess = i == EXCESS ? -30000 : 0; /* a part of it was seen and charged before */
    queues[0].open.stalled = i == STALLED ? 40000 : 0;
    queues[0].previous_done = now + (i == BEHIND ? 1000 : 0); /* right behind other work, so that it had the device */
    marked(0, function, 1, now + 500);
    CHECK(near(done(0, now + 110000), i == BEHIND ? 54500 : 0, 1000));
    gs_function_learn(function, i == BEHIND ? 50000 : 100000, 1, true);
    gs_meter_turn(&meter, i == STALLED ? 0 : 1, now - 1000);
    gs_meter_end(&meter);
    CHECK(near(meter.busy, i == BEHIND ? 108400 : 70000, 400));
  }
}

static void check_unknown_bounds(void) {
  /* A copy may be what took long. */
  fresh();
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  queues[0].clouded = true;
  meter.balance = 5000; /* would be charged each time */
  marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 300000), GS_METER_GUESS_NS, 1) && function->estimate == GS_METER_GUESS_NS);
  /* The lease changed meanwhile: what it took counts only until it is seen alone. */
  fresh();
  function = gs_meter_function(&meter, 0x1000);
  marked(0, function, 1, now + 2000);
  gs_meter_reap(&meter, &queues[0], now + 300000, 3, 1);
  CHECK(function->shared);
  /* By the clocks, it began a little before it was launched. */
  fresh();
  now += 10000;
  marked(0, known(0x1000, 300000), 1, now + 2000);
  CHECK(near(done(0, now + 299000), 300000, 1));
}

static void check_event(void) {
  /* The mark itself took the device some time, which is not the launch's; the stream was done only then. */
  fresh();
  meter.event_ns = 1000;
  queues[0].previous_done = now + 1;
  marked(0, known(0x1000, 300000), 1, now + 2000);
  CHECK(near(done(0, now + 280000), 279000, 2) && queues[0].previous_done == now + 280000);
  /* But not of the time since a launch onto an empty stream: the clock was set by such marks. */
  fresh();
  meter.event_ns = 1000;
  marked(0, known(0x1000, 300000), 1, now + 2000);
  CHECK(near(done(0, now + 280000), 280000, 1));
  /* It cannot have taken longer than there was time. */
  fresh();
  meter.event_ns = 1000;
  queues[0].previous_done = now + 1;
  marked(0, known(0x1000, 300000), 1, now);
  CHECK(done(0, now + 500) == 0 && queues[0].previous_done == now + 500);
}

static void check_same(void) {
  /* A launch within the clocks' error of its mean is charged as the mean, but teaches: means may change slowly. */
  for (int sign = -1; sign <= 1; sign += 2) {
    fresh();
    struct gs_function *function = known(0x1000, 300000);
    function->weight = 4;
    function->spread = 3000;
    now += 10000;
    marked(0, function, 1, now + 2000);
    CHECK(near(done(0, now + 300000 + (uint64_t)(sign * 2500)), 300000, 1));
    CHECK(near(function->estimate, 300000 + sign * 2500 / 4.9, 30));
  }
  fresh();
  marked(0, known(0x1000, 300000), 1, now + 2000);
  CHECK(near(done(0, now + 303500), 303500, 1));
}

void check_marks(void) {
  check_event();
  check_same();
  check_unknown_bounds();
  check_whole();
  check_queued();
  check_lost();
  check_again();
  check_carried();
  check_made_up();
  check_taught();
  check_taught_by_one();
  check_far_launch();
  check_begin();
  check_fill();
  check_unknown_length();
  check_unknown_beside();
  check_later();
}
