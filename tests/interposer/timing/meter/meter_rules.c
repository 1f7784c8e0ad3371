/* The rules for what is measured, and for what a measurement teaches. */
#include "meter_rules.h"

#include <stddef.h>
#include <string.h>

static const double ms = 1000000;

void fresh(void) {
  restart();
  meter.event_ns = 0;
  for (int s = 0; s < 2; s++)
    gs_meter_synced(&meter, &queues[s], now, (struct gs_waited){0});
}

struct gs_function *known(uint64_t key, double ns) {
  struct gs_function *function = gs_meter_function(&meter, key);
  function->estimate = ns;
  function->observed = GS_METER_TRUSTED;
  function->exact = true;
  function->weight = 1e9;
  return function;
}

struct gs_mark *marked(int s, struct gs_function *function, uint32_t n, uint64_t by) {
  for (uint32_t i = 0; i < n; i++)
    gs_meter_launch(&meter, &queues[s], function, now, 1);
  struct gs_mark *mark = gs_meter_mark(&meter, &queues[s], false, now);
  CHECK(mark);
  mark->recorded_by = by;
  mark->state = GS_MARK_RECORDED;
  return mark;
}

double done(int s, uint64_t at) {
  double before = meter.busy;
  gs_meter_reap(&meter, &queues[s], at, 1, 1);
  return meter.busy - before;
}

double bracket(int s, struct gs_function *function, double stands, enum gs_held held, double took, uint64_t begun) {
  queues[s].again = stands;
  uint32_t plan = gs_meter_launch(&meter, &queues[s], function, now, 1);
  CHECK(plan & GS_PLAN_SAMPLE);
  gs_meter_sampling(&queues[s], function, plan, now, now + 1000, now + 3000, now + 5000, held);
  double before = meter.busy;
  gs_meter_sampled(&meter, &queues[s], took, begun, 1);
  return meter.busy - before;
}

static uint32_t plan(int s, struct gs_function *function) {
  return gs_meter_launch(&meter, &queues[s], function, now, 1);
}

/* The same for a launch that is chosen. */
static uint32_t plan_chosen(int s, struct gs_function *function) {
  queues[s].again = 5;
  return plan(s, function);
}

/* The number of launches of 20 us, made at once, after which a mark is planned. */
static int launches_per_mark(void) {
  struct gs_function *function = known(0x1000, 20000);
  for (int i = 1;; i++)
    if (plan(0, function) & GS_PLAN_MARK)
      return i;
}

static void check_when_marked(void) {
  fresh();
  CHECK(launches_per_mark() == 25); /* 0.5 ms of work */
  fresh();
  meter.record_ns = 3000;
  meter.read_ns = 7000;
  CHECK(launches_per_mark() == 64); /* where marks are expensive, as much as pays for one */
  fresh();
  meter.mark_most_ns = 100000;
  CHECK(launches_per_mark() == 5);
  /* Where the stream is empty most of the time, the time in which it is makes the estimate inexact. */
  fresh();
  struct gs_function *tiny = known(0x2000, 1000);
  int launches = 1;
  for (; !(plan(0, tiny) & GS_PLAN_MARK); launches++)
    now += 100000;
  CHECK(launches == 22);
  /* A new function: after 1, 2, 4 launches. A bracket measures the first launch. */
  fresh();
  struct gs_function *new = gs_meter_function(&meter, 0x3000);
  CHECK(plan(0, new) == (GS_PLAN_SAMPLE | GS_PLAN_HOLD | GS_PLAN_MARK));
  new->observed = 2;
  CHECK(plan(0, new) == 0 && plan(0, new) == 0 && plan(0, new) == GS_PLAN_MARK);
  /* A new function after a pause gets a mark before it, so that the pause is not its time. */
  new->observed = 0;
  CHECK(!gs_meter_close_first(&queues[0], new, queues[0].end + GS_METER_GAP_NS));
  CHECK(gs_meter_close_first(&queues[0], new, queues[0].end + GS_METER_GAP_NS + 1));
  CHECK(!gs_meter_close_first(&queues[1], new, queues[0].end + GS_METER_GAP_NS + 1));
  new->observed = GS_METER_TRUSTED;
  CHECK(!gs_meter_close_first(&queues[0], new, queues[0].end + GS_METER_GAP_NS + 1));
}

static void check_own_mark(void) {
  /* A long launch onto an empty stream is measured by a mark; a shorter one only if it is chosen. */
  fresh();
  struct gs_function *lengthy = known(0x1000, 300000), *quick = known(0x2000, 20000);
  CHECK(plan(0, lengthy) == GS_PLAN_MARK && plan(1, quick) == 0);
  CHECK(queues[0].open.weight == 1 && queues[1].open.weight == 0);
  fresh();
  meter.record_ns = 3000;
  meter.read_ns = 7000;
  CHECK(plan(0, known(0x1000, 300000)) == 0 && plan(1, known(0x2000, 1.01 * ms)) == GS_PLAN_MARK);
  fresh();
  CHECK(plan_chosen(0, known(0x1000, 300000)) == GS_PLAN_MARK);
  /* Another mark shows when it could begin: where something else went into the stream before, */
  fresh();
  queues[0].clouded = true;
  CHECK(plan(0, known(0x1000, 300000)) == (GS_PLAN_MARK | GS_PLAN_START));
  now += 400000;
  CHECK(plan(0, known(0x1000, 300000)) == GS_PLAN_MARK); /* in the middle of a segment it would show nothing, */
  /* and before the first launch of a stream, where its context's clock is not known yet, or its function is not. */
  restart();
  CHECK(plan(0, known(0x1000, 20000)) == (GS_PLAN_MARK | GS_PLAN_START) && !queues[0].anchored);
  restart();
  queues[0].unclocked = queues[1].unclocked = false;
  CHECK(plan(0, gs_meter_function(&meter, 0x3000)) == (GS_PLAN_START | GS_PLAN_SAMPLE | GS_PLAN_HOLD | GS_PLAN_MARK));
  CHECK(plan(1, known(0x1000, 20000)) == 0 && queues[1].anchored && queues[1].previous_done == now);
  /* Not beside others, nor while the work of the last lease may still be there: that is noted. */
  fresh();
  gs_meter_turn(&meter, 1, now);
  CHECK(plan(0, known(0x1000, 300000)) == GS_PLAN_MARK && queues[0].open.shared);
  for (uint64_t later = 0; later < 2; later++) {
    fresh();
    lengthy = known(0x1000, 300000);
    gs_meter_launch(&meter, &queues[1], lengthy, now, 3);
    gs_meter_launch(&meter, &queues[1], lengthy, now, 5);
    now += later ? GS_METER_TAIL_NS : GS_METER_TAIL_NS - 1;
    CHECK(gs_meter_launch(&meter, &queues[0], lengthy, now, 5) == GS_PLAN_MARK);
    CHECK(queues[0].open.shared == !later);
  }
}

static void check_when_bracketed(void) {
  enum { BRACKET = GS_PLAN_SAMPLE | GS_PLAN_HOLD };
  fresh();
  struct gs_function *quick = known(0x1000, 20000), *new = gs_meter_function(&meter, 0x2000);
  CHECK(plan_chosen(0, quick) == BRACKET);
  CHECK(queues[0].sampled_weight == 5 && queues[0].again == 0);
  CHECK(plan_chosen(0, quick) == GS_PLAN_MARK); /* another thread is between the two events, */
  now += 1000000001;
  CHECK(plan_chosen(0, quick) & GS_PLAN_SAMPLE); /* but not forever */
  fresh();
  quick = known(0x1000, 20000);
  plan(1, quick);
  CHECK(plan_chosen(0, quick) == GS_PLAN_MARK); /* it would measure the other stream's work */
  fresh();
  quick = known(0x1000, 20000);
  gs_meter_repeated(&meter, &queues[0], quick, 0x1000, 1);
  CHECK(plan_chosen(0, quick) == 0); /* nobody knows how much is in front of it: the next one, then */
  CHECK(plan(0, quick) == BRACKET && queues[0].sampled_weight == 5);
  fresh();
  quick = known(0x1000, 20000);
  plan(0, quick);
  plan(0, quick);
  new = gs_meter_function(&meter, 0x2000);
  CHECK(!(plan(0, new) & GS_PLAN_SAMPLE)); /* too much is in front of it: the stream would be held for long */
  CHECK(plan_chosen(0, quick) == BRACKET); /* in place of one that was chosen: at any rate */
  /* While the work of the last lease may still be there, its time may be shared. */
  for (uint64_t later = 0; later < 2; later++) {
    fresh();
    quick = known(0x1000, 20000);
    gs_meter_launch(&meter, &queues[1], quick, now, 3);
    gs_meter_launch(&meter, &queues[1], quick, now, 5);
    now += later ? GS_METER_TAIL_NS : GS_METER_TAIL_NS - 1;
    queues[0].again = 1;
    CHECK(gs_meter_launch(&meter, &queues[0], quick, now, 5) & GS_PLAN_SAMPLE);
    CHECK(queues[0].sampled_shared == !later);
  }
  /* A function that brackets do not measure is not tried forever. */
  fresh();
  new = gs_meter_function(&meter, 0x2000);
  new->observed = GS_METER_TRUSTED;
  for (int i = 0; i < 2 * GS_METER_TRIES; i++, now += 100000) {
    CHECK(!(plan(0, new) & GS_PLAN_SAMPLE) == (i >= GS_METER_TRIES));
    queues[0].bracketing = false;
  }
}

static void check_bracketed_beside(void) {
  enum { BRACKET = GS_PLAN_SAMPLE | GS_PLAN_HOLD };
  for (uint32_t others = 0; others < 2; others++) {
    uint32_t expected = others ? BRACKET : GS_PLAN_MARK;
    /* Nothing else shows when a launch onto an empty queue began: however long it is, */
    fresh();
    gs_meter_turn(&meter, others, now);
    CHECK(plan_chosen(0, known(0x1000, 300000)) == expected);
    CHECK(!others || queues[0].sampled_weight == 1); /* each of these is measured */
    /* and whatever pays for it. */
    fresh();
    gs_meter_turn(&meter, others, now);
    meter.per_purse = 1;
    meter.purse = 10;
    CHECK(plan(0, known(0x1000, 20000)) == expected);
    /* Behind other work it is known when it began, and the purse pays for marks only. */
    CHECK(gs_meter_mark(&meter, &queues[0], false, now));
    queues[0].bracketing = false;
    CHECK(plan(0, known(0x1000, 20000)) == GS_PLAN_MARK);
    /* As long as it is not chosen, a long one gets a mark of its own. */
    fresh();
    gs_meter_turn(&meter, others, now);
    CHECK(plan(0, known(0x1000, 300000)) == GS_PLAN_MARK);
    /* In the middle of a segment what it took is not charged by itself: it only shows how long a new function takes. */
    fresh();
    gs_meter_turn(&meter, others, now);
    plan(0, known(0x1000, 20000));
    CHECK(plan_chosen(0, known(0x1000, 20000)) == (others ? GS_PLAN_MARK : BRACKET));
    queues[0].bracketing = false;
    fresh();
    gs_meter_turn(&meter, others, now);
    plan(0, known(0x1000, 20000));
    CHECK(plan(0, gs_meter_function(&meter, 0x2000)) & GS_PLAN_SAMPLE);
  }
}

static void check_shares(void) {
  /* The time of a segment belongs to the streams that launched meanwhile. */
  fresh();
  struct gs_function *quick = known(0x1000, 20000);
  for (int i = 0; i < 3; i++)
    plan(1, quick);
  struct gs_mark *mark = marked(0, quick, 1, now);
  CHECK(mark->segment.share == 0.25);
  mark = marked(0, quick, 1, now);
  CHECK(mark->segment.share == 1);
}

void check_launches(void) {
  check_when_marked();
  check_own_mark();
  check_when_bracketed();
  check_bracketed_beside();
  check_shares();
}

/* ---- the purse ---- */

/* A program with a launch every 10 us, to which a measurement costs 10 us. */
static void steady(void) {
  fresh();
  meter.record_ns = 3200; /* one step above */
  meter.read_ns = 7000 * 16.0 / 15;
  gs_meter_recorded(&meter, 3000);
  gs_meter_read(&meter, 7000);
  gs_purse_earn(&meter, now, 0);
  for (int i = 0; i < 1000; i++)
    gs_purse_earn(&meter, now += 10000, 1);
}

/* How many of `n` launches are chosen; they stand for *all. */
static int choose(int n, double *all) {
  int chosen = 0;
  double stands;
  *all = 0;
  for (int i = 0; i < n; i++) {
    meter.counted++;
    if (!gs_purse_chosen(&meter, &queues[0], &stands))
      continue;
    chosen++;
    *all += stands;
  }
  return chosen;
}

static void check_chosen(void) {
  double all, dues[2];
  steady();
  double usual = gs_purse_chance(&meter);
  CHECK(near(usual, 1.0 / GS_METER_INCOME, 0.0001));
  CHECK(near(choose(200000, &all), 200000 * usual, 150) && near(all, 200000, 20000));
  /* With more in the purse, more; each stands for what it was chosen from. */
  meter.purse = (1 - usual) / meter.per_purse;
  CHECK(near(choose(20000, &all), 20000 * 0.632, 400) && near(all, 20000, 400));
  /* Those that the purse pays for are not bracketed. */
  meter.purse = 3 * usual / meter.per_purse;
  int bracketed = 0;
  for (int i = 0; i < 20000; i++) {
    meter.counted++;
    bracketed += gs_purse_usual(&meter);
  }
  CHECK(near(bracketed, 5000, 350));
  /* What is nearly certain is not left to chance. */
  meter.purse = 3.1 / meter.per_purse;
  CHECK(choose(1000, &all) == 1000 && all == 1000);
  /* A program cannot know its draws from its calls: they depend on the clock. */
  for (int i = 0; i < 2; i++) {
    steady();
    meter.counted += (uint64_t)i;
    queues[0].due = 0;
    gs_meter_unchosen(&meter, &queues[0], 1);
    dues[i] = queues[0].due;
  }
  CHECK(dues[0] > 0 && dues[1] > 0 && dues[0] != dues[1]);
  /* Repeated launches count as those that are planned one by one. */
  steady();
  queues[0].due = 0.5 * usual + 10 * usual;
  CHECK(gs_meter_unchosen(&meter, &queues[0], 5) == 5 && gs_meter_unchosen(&meter, &queues[0], 100) == 10);
  gs_meter_repeated(&meter, &queues[0], known(0x1000, 20000), 0x1000, 8);
  CHECK(gs_meter_unchosen(&meter, &queues[0], 100) == 2);
  queues[0].again = 3;
  CHECK(gs_meter_unchosen(&meter, &queues[0], 100) == 0);
}

static void check_income(void) {
  steady();
  /* A longer pause is not part of the interval between launches: a part of it is saved. */
  double interval = meter.interval;
  CHECK(meter.saved == 0 && near(interval, 10000, 10));
  gs_purse_earn(&meter, now += 900000, 0);
  CHECK(meter.saved == 0);
  gs_purse_earn(&meter, now += 2280000, 0);
  CHECK(meter.saved == 10000 && meter.interval == interval);
  CHECK(!gs_meter_uncovered(&meter));
  gs_purse_earn(&meter, now += 10000000000, 1);
  CHECK(near(meter.saved * meter.per_purse, 3, 1e-6)); /* never more than for a few at once */
  CHECK(meter.interval < 1.5 * ms && meter.purse == 0);
  meter.purse = 10 * ms;
  /* Half of what measuring has uncovered. */
  gs_purse_found(&meter, 2 * ms);
  CHECK(meter.purse == 11 * ms);
  gs_purse_found(&meter, -2 * ms);
  CHECK(meter.purse == 11 * ms);
  gs_purse_found(&meter, 1000 * ms);
  CHECK(meter.purse == 25 * ms);
  CHECK(gs_meter_uncovered(&meter));
  gs_purse_pay(&meter, 1000 * ms);
  CHECK(!gs_meter_uncovered(&meter));
}

static void check_cost(void) {
  /* The purse pays for what is measured besides the usual. */
  steady();
  double usual = gs_purse_chance(&meter);
  meter.purse = 3 * usual / meter.per_purse;
  double before = meter.purse;
  gs_purse_pay(&meter, 400);
  CHECK(near(meter.purse, before - 300, 0.1));
  meter.saved = usual / meter.per_purse;
  meter.purse = before = 2 * usual / meter.per_purse;
  gs_purse_pay(&meter, 400);
  CHECK(near(meter.purse, before - 200, 0.1) && near(meter.saved, before / 2 - 100, 0.1));
  gs_purse_pay(&meter, 1000 * ms);
  CHECK(meter.purse == 0 && meter.saved == 0);
  meter.purse = ms;
  gs_meter_recorded(&meter, 3000);
  CHECK(near(meter.purse, ms - 3000, 300));
  gs_meter_read(&meter, 7000);
  CHECK(near(meter.purse, ms - 10000, 700));
  gs_meter_bracketed(&meter, 9000);
  CHECK(near(meter.purse, ms - 19000, 900));
  /* A program that keeps the driver busy makes marks expensive only up to a bound, and not for long. */
  fresh();
  gs_meter_recorded(&meter, 10 * ms);
  CHECK(meter.record_ns == 10000);
  for (int i = 0; i < 1000; i++) {
    gs_meter_recorded(&meter, 10 * ms);
    gs_meter_read(&meter, 10 * ms);
  }
  CHECK(meter.record_ns <= 40000 && meter.read_ns <= 40000);
  for (int i = 0; i < 50; i++)
    gs_meter_recorded(&meter, 3000);
  CHECK(meter.record_ns < 4000);
}

static void check_before_wait(void) {
  fresh();
  struct gs_function *quick = known(0x1000, 20000), *new = gs_meter_function(&meter, 0x2000);
  CHECK(!gs_meter_check_before_sync(&meter, &queues[0])); /* there is nothing to see */
  plan(0, quick);
  plan(0, quick);
  CHECK(!gs_meter_check_before_sync(&meter, &queues[0])); /* it is known how long they take */
  plan(0, new);
  CHECK(gs_meter_check_before_sync(&meter, &queues[0])); /* the new one is not */
  plan(1, new);
  CHECK(!gs_meter_check_before_sync(&meter, &queues[1])); /* a single one is bracketed, or over at once */
  plan(1, new);
  CHECK(gs_meter_check_before_sync(&meter, &queues[1]));
  /* More functions than a segment remembers, and one of the rest is new. */
  fresh();
  for (uint64_t i = 0; i <= GS_METER_KINDS; i++)
    plan(0, known(0x1000 + 0x100 * i, 20000));
  CHECK(!gs_meter_check_before_sync(&meter, &queues[0]));
  plan(0, gs_meter_function(&meter, 0x2000));
  CHECK(gs_meter_check_before_sync(&meter, &queues[0]));
}

void check_purse(void) {
  check_chosen();
  check_income();
  check_cost();
  check_before_wait();
}
