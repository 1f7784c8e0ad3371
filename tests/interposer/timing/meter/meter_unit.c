/* Each rule of the meter, against a modelled GPU or, where one call shows the rule, in single calls; exits
 * non-zero if one is broken. */
#include "meter_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../../support/check.h"

/* `n` kernels of `ns` in one stream, each waited for at once, or all at the end. */
static void launch_all(uint64_t ns, int n, bool each) {
  for (int i = 0; i < n; i++) {
    launch(0, 0x1000, ns);
    if (each)
      sync_stream(0);
  }
  sync_all();
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
  /* Never counts more than the wall time, even when the table of pieces is full. */
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
  CHECK(near(gs_meter_resident(&meter, 200, 300, 2), 33.3, 0.1)); /* the grant has two processes */
}

static void check_exclusive(void) {
  fresh();
  uint64_t t = now;
  CHECK(gs_meter_exclusive(&meter, t, t + 1000000) == 1000000);
  gs_meter_turn(&meter, 1, t);
  CHECK(gs_meter_exclusive(&meter, t - 3000000, t + 1000000) == 3000000); /* there was nobody before */
  gs_meter_turn(&meter, 0, t + 1000000);
  gs_meter_turn(&meter, 1, t + 5000000);
  CHECK(gs_meter_exclusive(&meter, t, t + 4500000) == 3500000);
  CHECK(gs_meter_exclusive(&meter, t, t + 6000000) == 4000000);
  /* Turns that were expected later did not take place. */
  gs_meter_turn(&meter, 0, t + 4000000);
  CHECK(gs_meter_last_turn(&meter) == t + 1000000 && gs_meter_exclusive(&meter, t, t + 6000000) == 5000000);
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
  launch_all(20000, 2000, false);
  for (int i = 0; i < 20; i++)
    launch(0, 0x1000, 20000);
  now += 30000000;
  for (int i = 0; i < 50; i++)
    launch(0, 0x7000, 800000);
  sync_stream(0);
  CHECK(meter.busy < 1.02 * (double)truth && meter.busy > 0.98 * (double)truth);
}

/* 10 launches of 20 us whose mark is done `later`, under another lease; others were there all the time. */
static double foreign_segment(uint64_t later) {
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  double busy = meter.busy;
  for (int i = 0; i < 10; i++)
    gs_meter_launch(&meter, &queues[0], function, now, 1);
  CHECK(gs_meter_mark(&meter, &queues[0], false, now));
  gs_meter_reap(&meter, &queues[0], now + later, 3, 1);
  gs_meter_settle(&meter, now + later + GS_METER_SLICE_NS);
  now += later;
  return meter.busy - busy;
}

static void check_foreign(void) {
  /* A segment during which the device was in foreign use is charged by estimate and not used for learning; if it took
   * far longer, its part of that time is, less the slice that may have been the others'. */
  restart();
  launch_all(20000, 2000, false);
  double estimate = gs_meter_function(&meter, 0x1000)->estimate;
  gs_meter_turn(&meter, 1, now);
  CHECK(near(foreign_segment(2000000), 200000, 20000));
  CHECK(near(foreign_segment(50000000), 25000000, GS_METER_SLICE_NS));
  CHECK(gs_meter_function(&meter, 0x1000)->estimate == estimate);
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
  /* The thread is preempted just before it records a mark: the device idles meanwhile, and the late mark charges
   * nothing for it. */
  restart();
  launch_all(20000, 2000, false);
  known_segment(1, 1, 2000, 0);
  for (int i = 0; i < 10; i++)
    CHECK(known_segment(1, 1, 10000000, 0) < 1.05 * 500000);
}

static void check_tail(void) {
  /* Work of the previous holder continues for a slice of the device when a lease begins, and the process learns of it later. */
  restart();
  launch_all(20000, 2000, false);
  known_segment(3, 3, 2000, 0);
  now = tail[0] + 20000000;
  CHECK(known_segment(5, 5, 2000, 0) < 1.05 * 500000);
  now = tail[0] + 20000000;
  double busy = meter.busy;
  gs_meter_turn(&meter, 1, now);
  known_segment(7, 7, 2000, 2000000);
  gs_meter_turn(&meter, 0, tail[0] - 500000);
  CHECK(near(meter.busy - busy, 500000, 25000));
}

static void check_said(void) {
  /* Others are reported on the device but are not there. */
  restart();
  launch_all(20000, 2000, false);
  known_segment(1, 1, 2000, 0);
  gs_meter_turn(&meter, 1, now);
  for (int i = 0; i < 10; i++)
    CHECK(known_segment(1, 1, 2000, 0) > 0.95 * 500000);
}

static void check_no_lease(void) {
  /* Its work goes on without a lease, beside four others which take four fifths of the device. */
  restart();
  launch_all(20000, 2000, false);
  known_segment(4, 4, 2000, 0);
  now += 20000000;
  gs_meter_turn(&meter, 4, now);
  for (int i = 0; i < 10; i++)
    CHECK(known_segment(4, 4, 2000, 2000000) < 1.05 * 500000);
}

static void check_reuse(void) {
  restart();
  launch_all(20000, 2000, false);
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
  launch_all(20000, 2000, false);
  memset(&queues[1], 0, sizeof queues[1]); /* launch_all waited for this stream too */
  launch(1, 0x3000, 100000);
  now = tail[1];
  reap();
  double estimate = gs_meter_function(&meter, 0x3000)->estimate;
  CHECK(estimate > 90000 && estimate < 110000);
}

static void check_expected_end(void) {
  /* Two kernels with a mark each, delayed together: the second completes its own duration after the first. */
  restart();
  launch_all(1000000, 200, false);
  struct gs_function *function = known(0x1000, 1000000);
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

static void check_in_flight(void) {
  /* Work that must be done by now is not in flight, whether a mark has shown it or not. */
  for (int marks = 0; marks < 2; marks++) {
    fresh();
    struct gs_function *function = known(0x1000, 500000);
    if (marks)
      marked(0, function, 4, now);
    else
      for (int i = 0; i < 4; i++)
        gs_meter_launch(&meter, &queues[0], function, now, 1);
    CHECK(near(gs_queue_inflight(&queues[0], 2e6, now), 2e6, 1));
    CHECK(near(gs_queue_inflight(&queues[0], 2e6, now + 500000), 1.5e6, 1));
    CHECK(gs_queue_inflight(&queues[0], 2e6, now + 3000000) == 0);
  }
  fresh();
  gs_meter_launch(&meter, &queues[0], gs_meter_function(&meter, 0x2000), now, 1);
  CHECK(near(gs_queue_inflight(&queues[0], 2e6, now), GS_METER_GUESS_NS + 2e6 / GS_METER_RISK_SHARE, 1));
}

static void check_stuck(void) {
  fresh();
  marked(0, known(0x1000, 5000000), 1, now);
  CHECK(!gs_queue_stuck(&meter, &queues[0], 2000000, now + 9900000)); /* it may well take twice as long */
  CHECK(gs_queue_stuck(&meter, &queues[0], 2000000, now + 10100000));
  meter.done_at = now + 9000000; /* another stream moves */
  CHECK(!gs_queue_stuck(&meter, &queues[0], 2000000, now + 10100000));
  CHECK(gs_queue_stuck(&meter, &queues[0], 2000000, now + 11100000));
  CHECK(!gs_queue_stuck(&meter, &queues[1], 2000000, now + 11100000));
}

static double since(double *busy) {
  double before = *busy;
  return (*busy = meter.busy) - before;
}

static void check_late_waits(void) {
  /* A mark is recorded behind a launch of 20 us that takes 400 ms. */
  restart();
  launch_all(20000, 2000, false);
  struct gs_function *function = gs_meter_function(&meter, 0x1000);
  uint64_t began = now;
  double busy = meter.busy;
  gs_meter_launch(&meter, &queues[0], function, now, 1);
  struct gs_mark *mark = gs_meter_mark(&meter, &queues[0], false, now);
  CHECK(mark);
  mark->state = GS_MARK_RECORDED;
  /* A query that finds the mark not reached shows the device at work; the time shown is charged at once. */
  gs_meter_unready(&meter, &queues[0], now + 4000000, 1);
  CHECK(since(&busy) == 0);
  gs_meter_unready(&meter, &queues[0], now + 100000000, 1);
  CHECK(since(&busy) == 100000000);
  gs_meter_unready(&meter, &queues[0], now + 300000000, 1);
  CHECK(near(since(&busy), 200000000, 1));
  /* While there is a mark, what a wait has seen is left to it: the mark knows when the work was done, and the waiting
   * thread may wake late. */
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

static void check_clocks(void) {
  /* Known kernels of 10 ms in two streams in turn, each waited for at once. By the clocks, the kernels of one stream
   * end 0.5 us too early, so they seem to begin in the pause before, while the other stream had the device. */
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

int main(void) {
  check_timeline();
  check_away();
  check_exclusive();
  check_clocks();
  check_books();
  check_unknown();
  check_gap();
  check_foreign();
  check_late_record();
  check_tail();
  check_said();
  check_no_lease();
  check_reuse();
  check_new_stream();
  check_expected_end();
  check_late_waits();
  check_in_flight();
  check_stuck();
  check_launches();
  check_purse();
  check_brackets();
  check_marks();
  check_beside();
  check_waits();
  check_late();
  check_alike();
  check_siblings();
  check_wrong();
  return 0;
}
