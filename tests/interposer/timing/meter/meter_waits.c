/* The rules for what waits show. */
#include "meter_rules.h"

static const double ms = 1000000;

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
  CHECK(near(late_wait(function, true), 20000 + GS_METER_GAP_NS, 3000));
  CHECK(near(late_wait(function, false), 10 * ms, 1)); /* here it is known that the stream was at work until then */
  /* Beside others nobody knows whose time it was. */
  fresh();
  function = known(0x1000, 20000);
  gs_meter_turn(&meter, 1, now);
  CHECK(near(late_wait(function, true), 20000, 1));
  /* Nor do they say anything of those that are late without them, but for what was after the work was done. */
  for (int others = 0; others < 2; others++) {
    fresh();
    gs_meter_turn(&meter, others, now);
    began = now;
    marked(0, known(0x1000, 20000), 1, now + 2000);
    done(0, now + 9000000);
    now += 10000000;
    gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
    CHECK(near(meter.worked, others ? 0 : 9 * ms, 50000) && near(meter.late - meter.worked, ms, 1));
  }
  /* So does a bracket. */
  fresh();
  began = now;
  bracket(0, known(0x1000, 20000), 1, GS_HELD, 20000, now + 5000);
  now += 10000000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
  CHECK(near(meter.busy, 20000, 1) && meter.late > 9.9 * ms && meter.worked < 10000);
}

/* After a wait that was late, nobody knows why, the next ones are marked, which shows it. */
static void check_asked(void) {
  enum { ASKED = 8 };
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  for (int late = 0; late < 2; late++) {
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    CHECK(!gs_meter_check_before_sync(&meter, &queues[0]));
    uint64_t began = now;
    now += late ? 10000000 : 20000;
    gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
    now += 100000;
  }
  for (int i = 1; i <= ASKED; i++) {                        /* the first of them was the late one */
    CHECK(!gs_meter_check_before_sync(&meter, &queues[0])); /* there is nothing to mark */
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    CHECK(gs_meter_check_before_sync(&meter, &queues[0]) == (i < ASKED));
    gs_meter_synced(&meter, &queues[0], now + 20000, (struct gs_waited){now, now + 20000, 1, true});
    now += 100000;
  }
}

/* Right behind work of its own, beside others, the device was its own but for the chance of a switch; what a wait shows of
 * that counts. If there was no such work, the others may have had it. */
static void check_wait_behind_own_work(void) {
  for (int behind = 0; behind < 2; behind++) {
    fresh();
    gs_meter_turn(&meter, 1, now);
    meter.late = 1e9;
    meter.worked = 1e9; /* such delays are the device's */
    uint64_t began = now;
    if (behind)
      marked(0, known(0x2000, 20000), 1, now + 1000);
    gs_meter_launch(&meter, &queues[0], known(0x1000, 20000), now, 1);
    if (behind)
      done(0, now + 20000);
    double before = meter.busy;
    now += 1020000;
    gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){began, now, 1, true});
    double kept = ms - ms / GS_METER_SLICE_NS * ms / 2;
    CHECK(near(meter.busy - before, behind ? kept : 20000, 25000));
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
  /* Beside others, all but half a slice; the rest of its part where the length is not known. */
  for (int new = 0; new < 2; new++) {
    fresh();
    struct gs_function *function = new ? gs_meter_function(&meter, 0x2000) : known(0x1000, 20000);
    gs_meter_turn(&meter, 1, now);
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    for (uint64_t i = 0; i < 5; i++)
      gs_meter_had_work(&meter, &queues[0], now + i * 10000000, now + (i + 1) * 10000000);
    CHECK(near(meter.busy, 25 * ms - GS_METER_SLICE_NS / 2, 1));
    gs_meter_synced(&meter, &queues[0], now + 50000000, (struct gs_waited){0});
    CHECK(near(meter.busy, 25 * ms - (new ? 0 : GS_METER_SLICE_NS / 2), 1));
  }
}

void check_waits(void) {
  check_returns();
  check_asked();
  check_wait_behind_own_work();
  check_seen_work();
}
