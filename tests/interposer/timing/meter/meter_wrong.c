/* The rules for means that are too long: what refutes them, and how launches are measured again. */
#include "meter_rules.h"

enum { MEAN = 20000, LAUNCHES = 40 };

/* A segment of 40 launches of 20 us, as believed, whose mark was done 5 us after its record, or `lag` ns. */
static void segment(struct gs_function *function, uint64_t room, uint64_t lag) {
  struct gs_mark *mark = marked(0, function, LAUNCHES, now + room);
  mark->recorded = now + room - 1000;
  now += room + lag;
  done(0, now);
  now += 10000000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){0});
}

static void check_refuted(void) {
  fresh();
  struct gs_function *function = known(0x1000, MEAN);
  for (int i = 0; i < 3; i++)
    segment(function, 400000, 5000);
  CHECK(function->observed >= GS_METER_TRUSTED);
  segment(function, 400000, GS_METER_LAG_NS + 100000); /* work waited: it may be right after all */
  for (int i = 0; i < 3; i++)
    segment(function, 400000, 5000);
  CHECK(function->observed >= GS_METER_TRUSTED && gs_meter_function(&meter, 0x1000)->exact);
  segment(function, 400000, 5000);
  CHECK(gs_function_unknown(function) && function->observed > 0);
  CHECK(near(function->estimate, MEAN, 1)); /* a first guess */
  segment(function, 400000, 5000);
  CHECK(function->estimate < MEAN); /* which has no room */
}

/* What refutes nothing: room for most of it, launches of very different lengths, and more room than others leave. */
static void check_not_refuted(void) {
  for (int uneven = 0; uneven < 2; uneven++) {
    fresh();
    struct gs_function *function = known(0x1000, MEAN);
    function->spread = uneven ? 2 * MEAN : 0;
    for (int i = 0; i < 16; i++)
      segment(function, uneven ? 400000 : 650000, 5000);
    CHECK(function->observed >= GS_METER_TRUSTED);
  }
}

/* Once launches were chosen at random, only such change the mean; and a launch that may have been made before the mark of
 * the segment before shows nothing. */
static void check_chosen_or_unsure(void) {
  for (int unsure = 0; unsure < 2; unsure++) {
    fresh();
    struct gs_function *function = known(0x1000, MEAN);
    if (!unsure)
      gs_function_learn(function, MEAN, 5, true);
    for (int i = 0; i < 16; i++) {
      struct gs_mark *mark = marked(0, function, LAUNCHES, now + 200000);
      mark->segment.unsure = unsure;
      done(0, now += 205000);
      gs_meter_synced(&meter, &queues[0], now += 10000000, (struct gs_waited){0});
    }
    CHECK(function->observed >= GS_METER_TRUSTED);
  }
}

/* Where launches of one burst are alike but bursts are not, one burst of short ones refutes little. */
static void check_bursts(void) {
  fresh();
  struct gs_function *function = known(0x1000, MEAN);
  function->spread = MEAN / 5;
  function->alike = 1;
  for (int i = 0; i < 15; i++)
    segment(function, 200000, 5000);
  CHECK(function->observed >= GS_METER_TRUSTED);
  segment(function, 200000, 5000);
  CHECK(gs_function_unknown(function));
}

/* Other streams are believed to have work that may be long done: another one's, also where a third had less since. */
static void check_measured_again(void) {
  enum { BRACKET = GS_PLAN_SAMPLE | GS_PLAN_HOLD };
  for (int until = 0; until < 4; until++) {
    fresh();
    struct gs_function *function = known(0x1000, MEAN);
    for (int i = 0; i < 10; i++)
      gs_meter_launch(&meter, &queues[1], function, now, 1);
    uint64_t end = queues[1].end;
    if (until & 2)
      gs_meter_launch(&meter, &queues[2], function, now, 1);
    for (int i = 0; i < 10; i++)
      gs_meter_launch(&meter, &queues[0], function, now, 1);
    now = until & 1 ? end : end - 1;
    queues[0].again = 5; /* this stream was idle where it was believed to be at work */
    uint32_t plan = gs_meter_launch(&meter, &queues[0], function, now, 1);
    CHECK(now < meter.end && plan == (until & 1 ? BRACKET : GS_PLAN_MARK));
  }
}

/* Only launches that others had meanwhile count, not those between the end of a bracket and when it is read. */
static void check_joined(void) {
  enum { BEFORE_END, AFTER_END, MANY };
  for (int joined = 0; joined < MANY; joined++) {
    fresh();
    struct gs_function *function = known(0x1000, MEAN);
    function->weight = 4;
    now += 1000000;
    queues[0].again = 5;
    uint32_t plan = gs_meter_launch(&meter, &queues[0], function, now, 1);
    gs_meter_sampling(&queues[0], function, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD);
    uint64_t begun = now + 5000;
    now = begun + (joined == BEFORE_END ? 5000 : 10000 + GS_METER_CLOCK_NS);
    gs_meter_launch(&meter, &queues[1], function, now, 1);
    gs_meter_sampled(&meter, &queues[0], 10000, begun, 1);
    CHECK((function->estimate < MEAN) == (joined == AFTER_END));
  }
}

void check_wrong(void) {
  check_refuted();
  check_not_refuted();
  check_chosen_or_unsure();
  check_bursts();
  check_measured_again();
  check_joined();
}
