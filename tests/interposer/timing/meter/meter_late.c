/* The rules for what the host did late: a call that took long shows nothing of the device. */
#include "meter_rules.h"

static const double ms = 1000000;

/* What is charged for a launch of `ns` that was made within 2 us, if its mark was recorded by `by` and done at `end`,
 * after now. */
static double marked_late(double ns, uint64_t by, uint64_t end, bool others) {
  fresh();
  struct gs_function *function = known(0x1000, ns);
  function->weight = 4;
  if (others)
    gs_meter_turn(&meter, 1, now);
  queues[0].made = now + 2000;
  marked(0, function, 1, now + by);
  if (others) /* they left at once */
    gs_meter_turn(&meter, 0, now + 1);
  return done(0, now + end);
}

static void check_mark_behind_its_launch(void) {
  for (int others = 0; others < 2; others++) {
    /* The device was done before the mark: the launch took its mean, if there is room for it, */
    CHECK(near(marked_late(20000, 45000, 45000, others), 20000, 1));
    CHECK(gs_meter_function(&meter, 0x1000)->estimate == 20000);
    CHECK(near(marked_late(20000, 12000, 12000, others), 12000, 2 * GS_METER_CLOCK_NS));
    CHECK(near(marked_late(2000, 45000, 45000, others), 2000, 1) && meter.purse == 0);
    /* The mark waited for it. */
    CHECK(near(marked_late(20000, 12000, 65000, others), 63000, 2 * GS_METER_CLOCK_NS));
    CHECK(gs_meter_function(&meter, 0x1000)->estimate > 21000);
  }
}

static void check_briefly_held(void) {
  const double host = 2000; /* of `bracket` */
  /* The launch was called between the two events: it took no less than what is left of the time, and no more. */
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  function->exact = false;
  function->weight = 4;
  bracket(0, function, 10, GS_HELD_BRIEFLY, 20000 + host, now + 1000);
  CHECK(function->estimate == 20000);
  bracket(0, function, 10, GS_HELD_BRIEFLY, 30000 + host, now + 1000);
  CHECK(function->estimate > 21000 && function->estimate < 30000);
  /* The thread lost its processor there. */
  fresh();
  function = known(0x1000, 2000);
  queues[0].again = 10;
  CHECK(gs_meter_launch(&meter, &queues[0], function, now, 1) & GS_PLAN_SAMPLE);
  gs_meter_sampling(&queues[0], function, GS_PLAN_SAMPLE | GS_PLAN_HOLD, now, now + 1000, now + 74000, now + 75000,
                    GS_HELD_BRIEFLY);
  gs_meter_sampled(&meter, &queues[0], 73000, now + 1000, 1);
  CHECK(meter.purse == 0 && function->far == 0 && function->estimate == 2000);
}

/* Most launches of the function take 100 us, this one at most the 9 us between its events; the wait for it returned late. */
static void check_short_one_briefly_held(void) {
  fresh();
  struct gs_function *function = known(0x1000, 100000);
  bracket(0, function, 1, GS_HELD_BRIEFLY, 9000, now + 1000);
  gs_meter_synced(&meter, &queues[0], now + 75000, (struct gs_waited){now + 70000, now + 75000, 1, true});
  CHECK(near(meter.busy, 9000, 1));
  CHECK(function->estimate < 100000);
}

static void check_start_mark(void) {
  /* A mark before the launch is no work: the launch came after it was recorded. */
  restart();
  struct gs_function *function = known(0x1000, 2000);
  CHECK(gs_meter_launch(&meter, &queues[0], function, now, 1) & GS_PLAN_START);
  struct gs_mark *mark = gs_meter_mark(&meter, &queues[0], true, now);
  mark->state = GS_MARK_RECORDED;
  gs_meter_started(&queues[0], now + 20000);
  queues[0].made = now + 25000;
  done(0, now + 10000);
  marked(0, function, 0, now + 28000);
  CHECK(queues[0].ring[1].segment.first == now + 20000);
  CHECK(near(done(0, now + 27000), 2000, 1) && function->estimate == 2000);
}

static void check_put_off(void) {
  const uint32_t held = GS_PLAN_SAMPLE | GS_PLAN_HOLD;
  /* Whether the queue is empty after repeated launches is not known: the launch after the chosen one is measured. */
  fresh();
  struct gs_function *function = known(0x1000, 2000);
  gs_meter_recorded(&meter, 3000); /* so that chances have a price */
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_repeated(&meter, &queues[0], function, 0x1000, 4);
  now += 100000;
  meter.saved = 1e9; /* so that the next one is chosen, and not by the purse */
  CHECK(gs_meter_launch(&meter, &queues[0], function, now, 1) == 0);
  CHECK(queues[0].again >= 1 && queues[0].open.weight == 0 && gs_meter_unchosen(&meter, &queues[0], 100) == 0);
  double stands = queues[0].again;
  meter.saved = 0;
  meter.purse = 1e9; /* which pays for no bracket */
  CHECK(gs_meter_launch(&meter, &queues[0], function, now += 10000, 1) == held);
  CHECK(queues[0].sampled_weight == stands && queues[0].again == 0);
  /* By a mark, if there is work before it. */
  queues[0].bracketing = false;
  meter.purse = 0;
  gs_meter_repeated(&meter, &queues[0], function, 0x1000, 32);
  meter.saved = 1e9;
  CHECK(gs_meter_launch(&meter, &queues[0], function, now, 1) == 0);
  CHECK(gs_meter_launch(&meter, &queues[0], function, now, 1) == GS_PLAN_MARK);
}

/* A bracketed launch of unknown length was seen at work from 100 us before it began, for 1 ms that others left; it took
 * `took`. What it was charged. */
static double seen_then_bracketed(double took) {
  fresh();
  gs_meter_turn(&meter, 1, now);
  gs_meter_turn(&meter, 0, now + 100000);
  struct gs_function *function = known(0x1000, 13000);
  queues[0].again = 10;
  CHECK(gs_meter_launch(&meter, &queues[0], function, now, 1) & GS_PLAN_SAMPLE);
  gs_meter_sampling(&queues[0], function, GS_PLAN_SAMPLE | GS_PLAN_HOLD, now, now + 1000, now + 3000, now + 5000,
                    GS_HELD);
  for (uint64_t at = 0; at < 1100000; at += 100000)
    gs_meter_had_work(&meter, &queues[0], now + 13000 + (at ? at - 13000 : 0), now + 100000 + at);
  CHECK(near(meter.busy, 1000000, 1));
  gs_meter_sampled(&meter, &queues[0], took, now + 50000, 1);
  CHECK(near(gs_segment_now(&queues[0].open) + queues[0].open.excess, 0, 1));
  gs_meter_had_work(&meter, &queues[0], now + 1100000, now + 1100000); /* nothing more */
  gs_timeline_add(&meter, now + 5000000, now + 5100000, 100000, 1);    /* of other work; too much is given back there */
  return meter.busy - 100000;
}

/* A launch of 1 ms waited for 20 ms for another stream's work, launched before it or meanwhile, whose mark was done in
 * between. */
static void check_seen_behind_another(void) {
  for (int meanwhile = 0; meanwhile < 2; meanwhile++) {
    fresh();
    struct gs_function *function = known(0x1000, 10000);
    if (!meanwhile)
      gs_meter_launch(&meter, &queues[1], function, now, 1);
    now += 100000;
    gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){0});
    queues[0].again = 10;
    queues[1].end = now;
    uint32_t plan = gs_meter_launch(&meter, &queues[0], function, now, 1);
    if (meanwhile)
      gs_meter_launch(&meter, &queues[1], function, now, 1);
    gs_meter_sampling(&queues[0], function, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD);
    for (uint64_t i = 0; i < 21; i++)
      gs_meter_had_work(&meter, &queues[0], now + i * 1000000, now + (i + 1) * 1000000);
    struct gs_mark *mark = marked(1, function, 0, now + 5000);
    gs_meter_reap(&meter, &queues[1], now + 20000000, 1, 1);
    CHECK(mark->segment.launches == 1 && near(meter.busy, 21 * ms, 200000));
    gs_meter_sampled(&meter, &queues[0], ms, now + 20000000, 1);
    gs_timeline_add(&meter, now + 30000000, now + 60000000, 30 * ms, 1); /* nothing of that is given back */
    CHECK(near(meter.busy, 51 * ms, 200000));
  }
}

static void check_seen_then_bracketed(void) {
  CHECK(near(seen_then_bracketed(1050000), 1050000, 1));
  CHECK(near(seen_then_bracketed(1000000), 1000000, 1));
  CHECK(near(seen_then_bracketed(950000), 950000, 1));
}

/* A burst of 20 us launches that repeat the first, `before` a pause of 1 ms and `behind` it, then one that is planned, and
 * a wait from then on for `waited`: what it all was charged. */
static double repeated(uint32_t before, uint32_t behind, uint64_t waited) {
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  uint64_t began = now;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_repeated(&meter, &queues[0], function, 0x1000, before + behind);
  now += 1000000;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  queues[0].bracketing = false;
  CHECK(now - began == 1000000);
  now += waited;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){now - waited, now, 1, true});
  return meter.busy;
}

/* A mark showed that launches which are believed to take 10 ms take next to nothing: a wait of 1 s after it is late. */
static void check_mark_before_a_wait(void) {
  fresh();
  struct gs_function *function = known(0x1000, 10000000);
  for (int i = 0; i < 100; i++)
    gs_meter_launch(&meter, &queues[0], function, now += 10000, 1);
  marked(0, function, 0, now + 2000);
  done(0, now + 3000);
  now += 100000;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  queues[0].bracketing = false;
  double before = meter.busy;
  uint64_t began = now;
  now += 1000000000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
  CHECK(meter.busy - before > 900000000);
}

static void check_repeated_before_a_wait(void) {
  CHECK(near(repeated(4, 8, 9 * 20000), 14 * 20000, 1)); /* what is waited for is not more than was launched */
  CHECK(near(repeated(12, 0, 20000), 14 * 20000, 1));
  CHECK(near(repeated(4, 8, 700000), 20000 + 700000, 1)); /* it is; each counts once */
  /* Those of an earlier wait do not count. */
  for (uint32_t after = 0; after < 13; after += 12) {
    repeated(4, 8, 1000);
    struct gs_function *function = gs_meter_function(&meter, 0x1000);
    for (int i = 0; i < 2; i++) {
      gs_meter_launch(&meter, &queues[0], function, now, 1);
      queues[0].bracketing = false;
      if (i == 0)
        gs_meter_repeated(&meter, &queues[0], function, 0x1000, after);
      uint64_t began = now;
      double charged = meter.busy;
      now += i == 0 ? 1000 : 150000;
      gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
      CHECK(near(meter.busy - charged, i == 0 ? 1000 : 150000, 1));
    }
  }
}

void check_late(void) {
  check_seen_then_bracketed();
  check_seen_behind_another();
  check_mark_before_a_wait();
  check_repeated_before_a_wait();
  check_mark_behind_its_launch();
  check_briefly_held();
  check_short_one_briefly_held();
  check_start_mark();
  check_put_off();
}
