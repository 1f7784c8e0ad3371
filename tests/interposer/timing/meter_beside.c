/* The rules for what others on the device change, and for what waits show. */
#include "meter_rules.h"

#include <stddef.h>

static const double ms = 1000000;

static void check_had(void) {
  fresh();
  uint64_t t = now;
  gs_meter_turn(&meter, 1, t);
  /* It had work before: it kept the device, but for the chance that the device was switched. */
  struct gs_had had = gs_meter_had(&meter, t, t + 500000, false, 20000);
  CHECK(near(had.least, 450000, 1) && had.most == 500000 && near(had.likely, 450000, 1) && had.beside == 500000);
  had = gs_meter_had(&meter, t, t + 500000, false, 480000);
  CHECK(near(had.likely, 480000, 1));
  had = gs_meter_had(&meter, t, t + 2000000, false, 20000); /* too long to have kept it */
  CHECK(had.least == 0 && near(had.likely, 20000, 1));
  had = gs_meter_had(&meter, t, t + 2000000, false, 600000);
  CHECK(near(had.least, 2000000 - 0.8 * 1000000, 1));
  had = gs_meter_had(&meter, t, t + 500000, true, 20000); /* it came: the others may have had it all the time */
  CHECK(had.least == 0 && near(had.likely, 20000, 1));
  /* Over several slices it had its part, but for one. */
  had = gs_meter_had(&meter, t, t + 10000000, true, ms);
  CHECK(near(had.least, 2.5 * ms, 1) && near(had.likely, 5 * ms, 1));
  had = gs_meter_had(&meter, t, t + 10000000, true, 4 * ms);
  CHECK(near(had.likely, 4 * ms, 1));
  /* They left, which is heard a little later. */
  gs_meter_turn(&meter, 0, t + 1000000);
  had = gs_meter_had(&meter, t, t + 2000000, true, 1.05 * ms);
  CHECK(had.least == ms && near(had.likely, 1.05 * ms, 1) && near(had.most, 1.1 * ms + 0.2 * ms, 1));
  had = gs_meter_had(&meter, t, t + 2000000, true, 1.2 * ms);
  CHECK(near(had.likely, 1.1 * ms + 0.4 * 0.1 * ms, 1));
  had = gs_meter_had(&meter, t, t + 2000000, true, 10 * ms);
  CHECK(near(had.likely, 1.3 * ms, 1));
  /* They may have come earlier than they were said to. */
  gs_meter_turn(&meter, 1, t + 5000000);
  CHECK(gs_meter_exclusive(&meter, t, t + 4500000) == 3.5 * ms);
  CHECK(gs_meter_exclusive(&meter, t, t + 6000000) == 3 * ms);
  /* Turns that were expected later did not take place. */
  gs_meter_turn(&meter, 0, t + 4000000);
  CHECK(gs_meter_last_turn(&meter) == t + 1000000 && gs_meter_exclusive(&meter, t, t + 6000000) == 5 * ms);
}

static void check_settled(void) {
  struct gs_function *function;
  /* How long the others were there is known when they left, or a time slice later. */
  for (int told = 0; told < 3; told++) {
    fresh();
    function = known(0x1000, 20000);
    function->weight = 4;
    gs_meter_turn(&meter, 1, now - 1000000);
    CHECK(bracket(0, function, 1, GS_HELD, 100000, now + 5000) == 0);
    CHECK(meter.unsettled == 1 && meter.busy == 0);
    gs_meter_settle(&meter, now + 105000 + GS_METER_SLICE_NS - 1);
    CHECK(meter.busy == 0);
    if (told == 0)
      gs_meter_settle(&meter, now + 105000 + GS_METER_SLICE_NS);
    else
      gs_meter_turn(&meter, 0, told == 1 ? now + 65000 : now - 1000);
    CHECK(near(meter.busy, told == 0 ? 20000 : told == 1 ? 40000 : 100000, 1) && meter.unsettled == 0);
    CHECK(near(meter.purse, told == 2 ? 40000 : 0, 1)); /* far longer than the mean, if it was all its own */
    /* It was measured only if they were gone before. */
    CHECK(function->estimate == 20000);
  }
  fresh();
  function = known(0x1000, 20000);
  function->weight = 4;
  gs_meter_turn(&meter, 1, now - 1000000);
  bracket(0, function, 1, GS_HELD, 40000, now + 5000);
  gs_meter_turn(&meter, 0, now - 1000);
  CHECK(near(meter.busy, 40000, 1) && near(function->estimate, 24100, 200));
  /* A new function that had a part of a long time only. */
  fresh();
  function = gs_meter_function(&meter, 0x2000);
  gs_meter_turn(&meter, 1, now - 1000000);
  bracket(0, function, 1, GS_HELD, 300000, now + 5000);
  gs_meter_turn(&meter, 0, now + 200000);
  CHECK(meter.busy > 0 && function->shared && function->observed == 0);
  /* No more of them than there is room for: then the oldest is charged by what is known. */
  fresh();
  gs_meter_turn(&meter, 1, now);
  for (uint64_t i = 0; i <= GS_METER_UNSETTLED; i++) {
    CHECK(meter.busy == 0);
    gs_meter_settle_later(&meter,
                          (struct gs_unsettled){now + i * 100000, now + i * 100000 + 50000, 20000, NULL, 0, 1, 1});
  }
  CHECK(near(meter.busy, 20000, 1) && meter.unsettled == GS_METER_UNSETTLED);
}

static void check_beside_others(void) {
  /* A short time right after its own work: it kept the device, so what was seen counts, and teaches. */
  fresh();
  struct gs_function *function = known(0x1000, 10000);
  function->weight = 4;
  gs_meter_turn(&meter, 1, now);
  queues[0].previous_done = now + 1000;
  marked(0, function, 4, now + 2000);
  CHECK(near(done(0, now + 61000), 59300, 200));
  CHECK(function->estimate > 11000 && function->estimate < 15000);
  /* A known one of the grant's processes' time does not teach. */
  fresh();
  function = known(0x1000, 20000);
  function->weight = 4;
  queues[0].again = 1;
  uint32_t plan = gs_meter_launch(&meter, &queues[0], function, now, 1);
  gs_meter_sampling(&queues[0], function, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD);
  gs_meter_sampled(&meter, &queues[0], 30000, now + 5000, 2);
  CHECK(function->estimate == 20000);
  /* A new one that had part of a long time only: its length is not known yet. */
  fresh();
  function = gs_meter_function(&meter, 0x2000);
  gs_meter_turn(&meter, 1, now);
  gs_meter_launch(&meter, &queues[0], known(0x1000, 5000), now, 1);
  bracket(0, function, 1, GS_HELD, 300000, now + 5000);
  CHECK(function->shared && !function->exact && function->observed == 0);
}

static void check_marks_beside_others(void) {
  /* What a mark shows of a launch that came to others is charged later as well: by the next launch or wait. */
  for (int wait = 0; wait < 2; wait++) {
    fresh();
    struct gs_function *function = known(0x1000, 100000);
    gs_meter_turn(&meter, 1, now);
    now += 1000;
    marked(0, function, 1, now + 2000);
    CHECK(done(0, now + 110000) == 0 && meter.unsettled == 1);
    now += 110000 + GS_METER_SLICE_NS;
    if (wait)
      gs_meter_synced(&meter, &queues[1], now, (struct gs_waited){0});
    else
      gs_meter_launch(&meter, &queues[1], function, now, 1);
    CHECK(near(meter.busy, 100000, 1));
  }
  /* Others may have been there, but were not: what was measured is charged, and teaches; nothing is carried over. */
  fresh();
  struct gs_function *measured = known(0x1000, 100000);
  measured->weight = 4;
  measured->spread = 10000;
  marked(0, measured, 1, now + 2000);
  gs_meter_reap(&meter, &queues[0], now + 80000, 3, 1);
  CHECK(near(meter.busy, 80000, 1) && queues[0].balance == 0 && near(measured->estimate, 95900, 100));
  /* What was only seen beside others does not bound what this shows. */
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  function->shared = true;
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 300000), 150000, 1000));
  /* Far longer: worth looking for more. */
  fresh();
  function = known(0x1000, 20000);
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 10, now + 2000);
  CHECK(near(done(0, now + 50000000), 25 * ms, GS_METER_SLICE_NS) && meter.purse > 10 * ms);
  CHECK(function->estimate == 20000);
  /* What is certain is charged as soon as it is late, once, and the rest when it is done. */
  fresh();
  function = known(0x1000, 20000);
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 1, now);
  for (int i = 1; i <= 2; i++) {
    gs_meter_unready(&meter, &queues[0], now + (uint64_t)i * 100000000, 1);
    CHECK(near(meter.busy, i * 50 * ms - GS_METER_SLICE_NS, 1));
  }
  done(0, now + 200000000);
  CHECK(near(meter.busy, 100 * ms, 1000));
  fresh(); /* unless a copy may have been what took so long */
  function = known(0x1000, 20000);
  queues[0].clouded = true;
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 10, now + 2000);
  CHECK(near(done(0, now + 50000000), 200000, 1));
  /* Right after its own work, but so long that the device may have been switched: that does not teach. */
  fresh();
  function = known(0x1000, 100000);
  function->weight = 4;
  gs_meter_turn(&meter, 1, now);
  queues[0].previous_done = now + 1000;
  marked(0, function, 4, now + 2000);
  done(0, now + 501000);
  CHECK(meter.busy > 400000 && function->estimate == 100000);
}

void check_beside(void) {
  check_had();
  check_settled();
  check_beside_others();
  check_marks_beside_others();
}

/* ---- waits ---- */

/* Launches once, and waits for 10 ms. */
static double late_wait(struct gs_function *function, bool returned) {
  double before = meter.busy;
  queues[0].recent = function;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  uint64_t began = now;
  now += 10000000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, returned});
  return meter.busy - before;
}

static void check_returns(void) {
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  CHECK(near(late_wait(function, true), 10 * ms, 1)); /* nobody knows better */
  CHECK(near(meter.purse, (10 * ms - 5 * 20000) / 2, 1));
  queues[0].clouded = true; /* it may have waited for a copy */
  CHECK(near(late_wait(function, true), 20000, 1));
  /* A mark shows that the thread returned late; then such delays are not the device's, but for the first of each. */
  uint64_t began = now;
  double before = meter.busy;
  marked(0, function, 1, now + 2000);
  done(0, now + 22000);
  now += 10000000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
  CHECK(near(meter.busy - before, 22000, 2100) && meter.late > 9.9 * ms && meter.worked < 10000);
  CHECK(near(late_wait(function, true), 20000 + 196000, 3000));
  CHECK(near(late_wait(function, false), 10 * ms, 1)); /* here it is known that the stream was at work until then */
  /* Beside others nobody knows whose time it was. */
  fresh();
  function = known(0x1000, 20000);
  gs_meter_turn(&meter, 1, now);
  CHECK(near(late_wait(function, true), 20000, 1));
  /* So does a bracket. */
  fresh();
  began = now;
  bracket(0, known(0x1000, 20000), 1, GS_HELD, 20000, now + 5000);
  now += 10000000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
  CHECK(near(meter.busy, 20000, 1) && meter.late > 9.9 * ms && meter.worked < 10000);
}

static void check_returns_behind_brackets(void) {
  for (int copy = 0; copy < 2; copy++) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    uint64_t began = now;
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    bracket(0, function, 1, GS_HELD, 20000, now + 20000);
    queues[0].clouded = copy; /* behind the launch: the wait was for this as well */
    now += 10000000;
    gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
    CHECK(near(meter.busy, 40000, 100) && (meter.late > 0) == !copy);
  }
}

static void check_seen_work(void) {
  /* Out of the marks' sight: what is certain is charged at once, and not again at the end. */
  fresh();
  gs_meter_launch(&meter, &queues[0], known(0x1000, 20000), now, 1);
  for (uint64_t i = 0; i < 5; i++) {
    gs_meter_had_work(&meter, &queues[0], now + i * 10000000, now + (i + 1) * 10000000);
    CHECK(near(meter.busy, (double)(i + 1) * 10 * ms, 1));
  }
  gs_meter_synced(&meter, &queues[0], now + 50000000, (struct gs_waited){0});
  CHECK(near(meter.busy, 50 * ms, 1));
  /* Nor by a mark. */
  fresh();
  gs_meter_launch(&meter, &queues[0], known(0x1000, 20000), now, 1);
  gs_meter_had_work(&meter, &queues[0], now, now + 10000000);
  now += 20000000;
  marked(0, known(0x1000, 20000), 0, now);
  CHECK(done(0, now + 1000) == 0);
  /* Beside others, all but a slice; the rest of its part where the length is not known. */
  for (int new = 0; new < 2; new++) {
    fresh();
    struct gs_function *function = new ? gs_meter_function(&meter, 0x2000) : known(0x1000, 20000);
    gs_meter_turn(&meter, 1, now);
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    for (uint64_t i = 0; i < 5; i++)
      gs_meter_had_work(&meter, &queues[0], now + i * 10000000, now + (i + 1) * 10000000);
    CHECK(near(meter.busy, 25 * ms - GS_METER_SLICE_NS, 1));
    gs_meter_synced(&meter, &queues[0], now + 50000000, (struct gs_waited){0});
    CHECK(near(meter.busy, 25 * ms - (new ? 0 : GS_METER_SLICE_NS), 1));
  }
}

void check_waits(void) {
  check_returns();
  check_returns_behind_brackets();
  check_seen_work();
}
