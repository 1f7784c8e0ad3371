/* The rules for what the host did late: a call that took long shows nothing of the device. */
#include "meter_rules.h"

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

static void check_residents(void) {
  /* The mark waited, and the grant's other process may have had a slice of that time. */
  const uint64_t waited[] = {150000, 400000}, least[] = {20000, 200000};
  for (int i = 0; i < 2; i++) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    queues[0].made = now + 2000;
    marked(0, function, 1, now + 2000);
    gs_meter_reap(&meter, &queues[0], now + waited[i], 1, 2);
    CHECK(near(meter.busy, least[i], 2 * GS_METER_CLOCK_NS) && function->estimate == 20000);
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

void check_late(void) {
  check_mark_behind_its_launch();
  check_residents();
  check_briefly_held();
  check_start_mark();
  check_put_off();
}
