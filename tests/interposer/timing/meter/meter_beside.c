/* The rules for what others on the device change, and for what waits show. */
#include "meter_rules.h"

static const double ms = 1000000;

static void check_had(void) {
  fresh();
  uint64_t t = now;
  gs_meter_turn(&meter, 1, t);
  /* It had work before: it kept the device, but for the chance that the device was switched. */
  struct gs_had had = gs_meter_had(&meter, t, t + 500000, false, 20000);
  CHECK(near(had.least, 450000, 1) && had.most == 500000 && had.beside == 500000);
  CHECK(near(had.likely, 500000, 1)); /* as it was not switched, or its estimate would be right */
  had = gs_meter_had(&meter, t, t + 500000, false, 400000);
  CHECK(near(had.likely, 450000 + 50 / 425.0 * 50000, 1));
  had = gs_meter_had(&meter, t, t + 500000, false, 480000);
  CHECK(near(had.likely, 480000, 1));
  had = gs_meter_had(&meter, t, t + 2000000, false, 20000); /* too long to have kept it */
  CHECK(had.least == 0 && near(had.likely, 20000, 1));
  had = gs_meter_had(&meter, t, t + 2000000, false, 600000);
  CHECK(near(had.least, 2000000 - 0.8 * 1000000, 1));
  had = gs_meter_had(&meter, t, t + 500000, true, 20000); /* it came: the others may have had it all the time */
  CHECK(had.least == 0 && had.most == 500000 && near(had.likely, 20000, 1));
  /* They left, which is heard a little later. */
  gs_meter_turn(&meter, 0, t + 1000000);
  had = gs_meter_had(&meter, t, t + 2000000, true, 1.05 * ms);
  CHECK(had.least == ms && near(had.likely, 1.05 * ms, 1) && near(had.most, 1.1 * ms + 0.2 * ms, 1));
  CHECK(near(gs_meter_had(&meter, t, t + 2000000, true, 1.2 * ms).likely, 1.1 * ms + 0.4 * 0.1 * ms, 1));
  CHECK(near(gs_meter_had(&meter, t, t + 2000000, true, 10 * ms).likely, 1.3 * ms, 1));
}

static void check_had_slices(void) {
  /* Over several slices it had its part, though each of the others perhaps had a slice more. */
  fresh();
  uint64_t t = now;
  gs_meter_turn(&meter, 1, t);
  struct gs_had had = gs_meter_had(&meter, t, t + 10000000, true, 4 * ms);
  CHECK(near(had.least, 3.75 * ms, 1) && had.most == 10 * ms && near(had.likely, 4 * ms, 1));
  /* The later it is, the less its estimate means, and the likelier is an even part. */
  had = gs_meter_had(&meter, t, t + 10000000, true, 3 * ms);
  CHECK(near(had.likely, 3.75 * ms + 0.75 / 3.025 * 1.25 * ms, 1));
  CHECK(near(gs_meter_had(&meter, t, t + 10000000, true, 3.749 * ms).likely, 3.75 * ms, 1000));
  for (double estimate = 0; estimate < 2 * ms; estimate += ms)
    CHECK(near(gs_meter_had(&meter, t, t + 10000000, true, estimate).likely, 5 * ms, 1));
  CHECK(gs_meter_had(&meter, t, t + 10000000, true, 20 * ms).likely == 10 * ms);
  /* They left: what it had alone is certain. */
  gs_meter_turn(&meter, 0, t + 3000000);
  had = gs_meter_had(&meter, t, t + 10000000, true, 7 * ms);
  CHECK(near(had.least, 7.25 * ms, 1) && near(had.likely, 7.25 * ms + 0.25 / 7.025 * 1.25 * ms, 1));
  /* There were two of them. */
  fresh();
  gs_meter_turn(&meter, 2, t);
  had = gs_meter_had(&meter, t, t + 12000000, true, 3 * ms);
  CHECK(near(had.least, 4 * ms - 2 / 3.0 * GS_METER_SLICE_NS, 1));
  gs_meter_turn(&meter, 0, t + 3000000);
  CHECK(gs_meter_had(&meter, t, t + 10000000, true, 3 * ms).least == 7 * ms);
  /* One of them left when it had had its slice. */
  fresh();
  gs_meter_turn(&meter, 2, t);
  gs_meter_turn(&meter, 1, t + 2000000);
  had = gs_meter_had(&meter, t, t + 4200000, true, 20000);
  CHECK(had.least == 0 && near(had.likely, 20000, 1));
  had = gs_meter_had(&meter, t, t + 8000000, true, 20000);
  CHECK(near(had.least, (8 - 5) / 2.0 * ms, 1));
}

static void check_had_kept(void) {
  /* They left and others came: it kept the device, which it had had to itself, but for the chance of a switch. */
  fresh();
  uint64_t t = now;
  gs_meter_turn(&meter, 1, t);
  gs_meter_turn(&meter, 0, t + 500000);
  gs_meter_turn(&meter, 1, t + 1500000);
  struct gs_had had = gs_meter_had(&meter, t, t + 3000000, true, 20000);
  double least = ms + 1.5 * ms - 0.6 * 0.75 * ms;
  CHECK(near(had.least, least, 1) && near(had.likely, least, 1) && had.beside == 2 * ms);
  CHECK(near(had.most, least + GS_METER_HEARD_NS + 0.2 * 0.25 * ms, 1));
  CHECK(near(gs_meter_had(&meter, t, t + 3000000, true, 2.1 * ms).likely, 2.1 * ms, 1));
  CHECK(near(gs_meter_had(&meter, t, t + 3000000, true, 2.25 * ms).likely, least + 100000 + 0.2 * 0.1 * ms, 1));
  /* Had it work before, or were the others not there yet, then it kept it for all that time; */
  had = gs_meter_had(&meter, t, t + 2600000, false, 20000);
  CHECK(near(had.least, ms + 1.6 * ms - 0.64 * 0.8 * ms, 1) && had.most == 2.6 * ms);
  for (int came = 0; came < 2; came++) {
    had = gs_meter_had(&meter, t + 500000, t + 3000000, came, 20000);
    CHECK(near(had.least, ms + 1.5 * ms - 0.6 * 0.75 * ms, 1) && had.most == 2.5 * ms);
    /* or it did not, if they were there for about as long as a time slice. */
    had = gs_meter_had(&meter, t + 500000, t + 3300000, came, 20000);
    CHECK(had.least == ms && near(had.likely, ms, 1));
    had = gs_meter_had(&meter, t + 500000, t + 3300000, came, 0.7 * ms); /* work as long as this is not so rare */
    CHECK(near(had.least, ms + 1.8 * ms - 0.72 * 0.9 * ms, 1));
  }
}

/* `n` launches of the function onto an empty stream beside others, which seem to take `took` ns: charged later. */
static void settled_later(struct gs_function *function, uint32_t n, uint64_t took) {
  function->weight = 4;
  gs_meter_turn(&meter, 1, now - 1000000);
  marked(0, function, n, now + 2000);
  CHECK(done(0, now + took) == 0 && meter.unsettled == 1);
}

static void check_settled(void) {
  struct gs_function *function;
  /* How long the others were there is known when they left, or a time slice later. */
  for (int turn = 0; turn < 3; turn++) {
    fresh();
    settled_later(function = known(0x1000, 20000), 1, 100000);
    gs_meter_settle(&meter, now + 100000 + GS_METER_SLICE_NS - 1);
    CHECK(meter.busy == 0);
    if (turn == 0)
      gs_meter_settle(&meter, now + 100000 + GS_METER_SLICE_NS);
    else
      gs_meter_turn(&meter, 0, turn == 1 ? now + 60000 : now - 1000);
    CHECK(near(meter.busy, turn == 0 ? 20000 : turn == 1 ? 40000 : 100000, 1) && meter.unsettled == 0);
    CHECK(near(meter.purse, turn == 2 ? 40000 : 0, 1)); /* far longer than the mean, if it was all its own */
    CHECK(function->estimate == 20000);                 /* and not part of it */
  }
  /* Meanwhile more is known of its length. The process ends; other streams worked at the same time. */
  fresh();
  settled_later(function = known(0x1000, 20000), 1, 100000);
  function->estimate = 30000;
  gs_timeline_add(&meter, now + 80000, now + 100000, 20000, 1);
  gs_meter_end(&meter);
  CHECK(near(meter.busy, 30000, 1) && meter.unsettled == 0);
  /* No more of them than there is room for: then the oldest is charged by what is known. */
  fresh();
  gs_meter_turn(&meter, 1, now);
  for (uint64_t i = 0; i <= GS_METER_UNSETTLED; i++) {
    struct gs_unsettled one = {.from = now + i * 100000, .to = now + i * 100000 + 50000, .came = true};
    one.segment.other = 20000;
    CHECK(meter.busy == 0);
    gs_meter_settle_later(&meter, one);
  }
  CHECK(near(meter.busy, 20000, 1) && meter.unsettled == GS_METER_UNSETTLED);
  CHECK(meter.piece[0].to == now + 50000 && meter.pending[0].from == now + 100000);
}

static void check_settled_teach(void) {
  /* The others were not there: it was measured. One that was chosen stands for all that it was chosen from. */
  for (int stands = 1; stands <= 5; stands += 2) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    queues[0].again = stands > 1 ? stands : 0;
    queues[0].bracketing = stands > 1;
    queues[0].last_bracket = now;
    settled_later(function, 1, 40000);
    if (stands == 3) /* its entry was given to another function meanwhile */
      function->key = 0x2000;
    gs_meter_turn(&meter, 0, now - 1000);
    double part = stands == 3 ? 0 : stands / (3.875 + stands);
    CHECK(near(meter.busy, 40000, 1) && near(function->estimate, 20000 + 20000 * part, 10));
  }
  for (uint32_t n = 1; n <= 10; n += 9) { /* a new function; several of its launches were not measured one by one */
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    function->exact = false;
    settled_later(function, n, n * 30000);
    gs_meter_turn(&meter, 0, now - 1000);
    CHECK(near(meter.busy, n * 30000, 1) && function->exact == (n == 1));
    CHECK(near(function->estimate, n == 1 ? 30000 : 20000 + 10000 * 10 / 13.875, 10));
  }
  /* What was only seen beside others: a short time is as good as it was, of a long one somebody else had a part. */
  for (uint64_t took = 100000; took <= 300000; took += 200000) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    function->exact = false;
    settled_later(function, 1, took);
    gs_meter_turn(&meter, 0, now + took - 40000);
    CHECK(near(meter.busy, 40000, 1) && function->shared == (took > GS_METER_UNSLICED_NS));
    CHECK((function->estimate > 20000) == (took < GS_METER_UNSLICED_NS) && !function->exact);
  }
}

/* ---- launches of unknown length ---- */

/* A mark shows that the launch of a new function, beside others, took 300 us. Half of that is charged for now. */
static struct gs_function *new_beside(void) {
  fresh();
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 1, now + 2000);
  queues[0].bracketing = false;
  CHECK(near(done(0, now + 300000), 150000, 2) && meter.unsettled == 1);
  CHECK(near(function->estimate, 150000, 2) && function->shared);
  return function;
}

static void check_shown_by_next(void) {
  /* The next one shows how long it was, and that counts once it is known who was there: the rest was too much, and what
   * is charged next is less by that; */
  struct gs_function *function = new_beside();
  uint64_t by = now + 300000 + GS_METER_SLICE_NS;
  now += 400000;
  CHECK(near(bracket(0, function, 1, GS_HELD, 100000, now + 5000), 100000, 1));
  gs_meter_settle(&meter, by - 1);
  CHECK(meter.credit == 0);
  gs_meter_settle(&meter, by);
  CHECK(near(meter.credit, 50000, 2) && near(meter.busy, 250000, 2) && meter.unsettled == 0);
  CHECK(near(gs_timeline_add(&meter, by, by + 30000, 30000, 1), 30000, 1) && near(meter.busy, 250000, 2));
  gs_timeline_add(&meter, by + 30000, by + 60000, 30000, 1);
  CHECK(meter.credit == 0 && near(meter.busy, 260000, 2));
  /* or it was what was seen of it, if they were not; but it does not teach any more. */
  function = new_beside();
  uint64_t t = now;
  now += 400000;
  bracket(0, function, 1, GS_HELD, 100000, now + 5000);
  function->weight = 4;
  gs_meter_turn(&meter, 0, t);
  CHECK(near(meter.busy, 400000, 2) && function->estimate == 100000 && meter.credit == 0);
}

static void check_not_shown(void) {
  enum { UNKNOWN_NS = 250000000 /* of unsettled.c */ };
  for (int left = 0; left < 2; left++) { /* at least what it had to itself */
    new_beside();
    gs_meter_turn(&meter, 0, now + (left ? 50000 : 300000));
    gs_meter_settle(&meter, now + 300000 + UNKNOWN_NS - 1);
    CHECK(near(meter.busy, 150000, 2) && meter.unsettled == 1);
    gs_meter_settle(&meter, now + 300000 + UNKNOWN_NS);
    CHECK(near(meter.busy, left ? 250000 : 150000, 2) && meter.unsettled == 0 && meter.credit == 0);
  }
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
  CHECK(near(meter.busy, 80000, 1) && meter.balance == 0 && near(measured->estimate, 95900, 100));
  /* What was only seen beside others does not bound what this shows. */
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  function->shared = true;
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 1, now + 2000);
  done(0, now + 300000);
  gs_meter_end(&meter);
  CHECK(near(meter.busy, 150000, 1000));
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
    CHECK(near(meter.busy, i * 50 * ms - GS_METER_SLICE_NS / 2, 1));
  }
  done(0, now + 200000000);
  CHECK(near(meter.busy, 100 * ms, 1000));
  fresh(); /* unless a copy may have been what took so long */
  function = known(0x1000, 20000);
  queues[0].clouded = true;
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 10, now + 2000);
  CHECK(near(done(0, now + 50000000), 200000, 1));
}

/* Right after other work of the same stream. */
static void check_right_after(void) {
  /* A short time: it kept the device, so what was seen counts, and teaches. */
  fresh();
  struct gs_function *function = known(0x1000, 10000);
  function->weight = 4;
  gs_meter_turn(&meter, 1, now);
  queues[0].previous_done = now + 1000;
  marked(0, function, 4, now + 2000);
  CHECK(near(done(0, now + 61000), 59300, 200));
  CHECK(function->estimate > 11000 && function->estimate < 15000);
  /* So long that the device may have been switched: that does not teach. */
  fresh();
  function = known(0x1000, 100000);
  function->weight = 4;
  gs_meter_turn(&meter, 1, now);
  queues[0].previous_done = now + 1000;
  marked(0, function, 4, now + 2000);
  done(0, now + 501000);
  CHECK(meter.busy > 400000 && function->estimate == 100000);
}

/* Launches of 1 ms each on average that took more beside another, one behind the other: they are charged together, and
 * the longer that was, the better it is known what they had. */
static void check_longer(void) {
  fresh();
  gs_meter_turn(&meter, 1, now);
  struct gs_function *function = known(0x1000, 1.0 * ms);
  for (int i = 0; i < 2; i++)
    marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 10000000), 5 * ms, 2000));
  double least = 19 / 2.0 * ms - GS_METER_SLICE_NS / 2.0, off = (least - 6 * ms) / (6 * ms + GS_METER_LATE_NS);
  CHECK(near(done(0, now + 19000000), least + off * GS_METER_SLICE_NS / 2 - 5 * ms, 2000));
  /* Not if it may have taken its average. */
  least = 28 / 2.0 * ms - GS_METER_SLICE_NS / 2.0 - meter.busy;
  function->estimate = least + 1000;
  marked(0, function, 1, now + 2000);
  CHECK(near(done(0, now + 28000000), least + 1000, 2000));
}

void check_beside(void) {
  check_longer();
  check_had();
  check_had_slices();
  check_had_kept();
  check_settled();
  check_settled_teach();
  check_shown_by_next();
  check_not_shown();
  check_right_after();
  check_marks_beside_others();
}
