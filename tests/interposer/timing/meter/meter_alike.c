/* The rules for launches of one function that differ in length. */
#include "meter_rules.h"

static const double ms = 1000000;
enum { BURST_NS = 4 * GS_METER_SLICE_NS };

/* Its launches took 2.8 or 152 us, and 60 us on average. */
static struct gs_function *of_two_lengths(void) {
  fresh();
  struct gs_function *function = known(0x1000, 60000);
  function->weight = 8;
  function->spread = 50000;
  function->alike = 1;
  for (int i = 0; i < 4; i++) {
    gs_function_classify(function, 2800, 1);
    gs_function_classify(function, 152000, 1);
  }
  return function;
}

static void check_what_fits(void) {
  struct gs_function *function = of_two_lengths();
  CHECK(near(gs_function_within(function, 26000), 2800, 1));
  CHECK(gs_function_within(function, 160000) == 60000); /* all of them fit, */
  CHECK(gs_function_within(function, 145000) == 60000); /* or some are about as long, */
  CHECK(gs_function_within(function, 2700) == 60000 &&
        gs_function_within(function, 1000) == 60000); /* or none is shorter */
  function->estimate = 2000;
  CHECK(gs_function_within(function, 26000) == 2000);
  /* Where launches differ that follow one another, any of them may be long. */
  function = of_two_lengths();
  function->alike = 0.89f;
  CHECK(gs_function_within(function, 26000) == 60000);
  /* One in twenty does not count. */
  function = of_two_lengths();
  gs_function_classify(function, 20000, 0.3);
  CHECK(near(gs_function_within(function, 26000), 2800, 1));
  gs_function_classify(function, 20000, 1);
  CHECK(gs_function_within(function, 26000) > 6000);
  /* Where all lengths occur, each may be as long as it had room. */
  fresh();
  function = known(0x1000, 10000);
  function->weight = 8;
  function->alike = 1;
  for (double length = 1000; length < 19500; length += 500)
    gs_function_classify(function, length, 1);
  for (double room = 1500; room < 40000; room += 500)
    CHECK(gs_function_within(function, room) == 10000);
}

static void check_charged_what_fits(void) {
  /* One that was done before its mark was recorded, */
  struct gs_function *function = of_two_lengths();
  marked(0, function, 1, now + 26000);
  CHECK(near(done(0, now + 26000), 2800, 1));
  /* three that were, */
  function = of_two_lengths();
  marked(0, function, 3, now + 40000);
  CHECK(near(done(0, now + 40000), 3 * 2800, 1));
  /* beside others too, */
  function = of_two_lengths();
  gs_meter_turn(&meter, 1, now);
  marked(0, function, 3, now + 40000);
  CHECK(near(done(0, now + 40000), 3 * 2800, 1));
  /* and one whose wait returned sooner than expected. */
  for (uint64_t took = 30000; took <= 60000; took += 30000) {
    function = of_two_lengths();
    gs_meter_launch(&meter, &queues[0], function, now, 1);
    gs_meter_synced(&meter, &queues[0], now + took, (struct gs_waited){now, now + took, 1, true});
    CHECK(near(meter.busy, took < 60000 ? 2800 : 60000, 1));
  }
}

static void check_burst(void) {
  struct gs_function *function = of_two_lengths();
  struct gs_segment segment = {.launches = 2, .kinds = 1, .kind = {{function, 0x1000, 2}}};
  gs_function_seen(function, 2800, segment.burst = gs_meter_burst(&meter, now));
  CHECK(near(gs_segment_now(&segment), 2 * 2800, 1));
  segment.burst++;
  CHECK(gs_segment_now(&segment) == 120000); /* of another burst */
  segment.burst--;
  function->spread = 5000; /* all of them are alike */
  CHECK(gs_segment_now(&segment) == 120000);
  function->spread = 50000;
  /* One of seven is not like the one before it: any of them may be long. */
  for (int i = 0; i < 28; i++)
    gs_function_seen(function, i % 7 == 6 ? 152000 : 2800, segment.burst);
  CHECK(function->alike < 0.9 && function->alike > 0.5 && gs_segment_now(&segment) == 120000);
  /* They are alike again. */
  for (int i = 0; i < 64; i++)
    gs_function_seen(function, 152000 + 1000 * (i % 2), segment.burst);
  CHECK(near(gs_segment_now(&segment), 2 * 152000, 2001));
  /* A burst lasts until the next wait, and not for long. */
  uint64_t burst = gs_meter_burst(&meter, now);
  CHECK(gs_meter_burst(&meter, burst + BURST_NS) == burst);
  CHECK(gs_meter_burst(&meter, burst + BURST_NS + 1) == burst + BURST_NS + 1);
  now += BURST_NS + 1000;
  gs_meter_synced(&meter, &queues[0], now, (struct gs_waited){0});
  CHECK(gs_meter_burst(&meter, now + 10) == now);
}

/* The bracket of the first launch shows how long the others of its burst take, of which nothing is seen. */
static void check_burst_is_charged(void) {
  struct gs_function *function = of_two_lengths();
  bracket(0, function, 1, GS_HELD, 2800, now + 5000);
  now += 300000;
  marked(0, function, 1, now);
  CHECK(near(done(0, now), 2800, 1) && near(meter.busy, 5600, 1));
}

static void check_known_lengths_beside(void) {
  struct gs_function *function = of_two_lengths();
  gs_function_classify(function, 2.5 * ms, 1);
  gs_meter_turn(&meter, 1, now);
  /* Over several time slices it had about half, which is a length that occurs; */
  CHECK(near(gs_function_about(&meter, function, 1, now, now + 4500000), 2.5 * ms, 1));
  CHECK(near(gs_function_about(&meter, function, 2, now, now + 9500000), 2.5 * ms, 1));
  CHECK(gs_function_about(&meter, function, 1, now, now + 9000000) == 60000); /* or it is not. */
  /* Of a shorter time it had all, if that is a length that occurs. */
  CHECK(near(gs_function_about(&meter, function, 1, now, now + 158000), 152000, 1));
  CHECK(gs_function_about(&meter, function, 1, now, now + 300000) == 60000);
  /* Lengths that differ say nothing. */
  for (int i = 0; i < 8; i++)
    gs_function_classify(function, 140000 + 110000 * (i % 2), 1);
  CHECK(gs_function_about(&meter, function, 1, now, now + 158000) == 60000);
  /* So is the launch of a bracket charged. */
  function = of_two_lengths();
  gs_meter_turn(&meter, 1, now);
  CHECK(near(bracket(0, function, 1, GS_HELD_BRIEFLY, 158000, now + 2000), 152000, 1));
}

/* By clocks, a launch was there when its first event was reached, or a little later, and went on when the second one was
 * recorded: how long it took is known although the stream was not held until then. */
static void check_by_clocks(void) {
  static const struct {
    uint64_t took, begun;
    double least, mean; /* of the charge, and what is then believed */
  } cases[] = {
      {100000, 4000, 100000, 100000}, /* there */
      {100000, 1000, 98000, 100000},  /* 2 us later at most */
      {20000, 1000, 0, 20000},        /* that is too much of so short a time */
      {12000, 4000, 0, 12000},        /* it may have been done before the second event was there */
  };
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    fresh();
    struct gs_function *function = known(0x1000, 200000);
    function->weight = 4;
    double charged = bracket(0, function, 1, GS_HELD_BRIEFLY, (double)cases[i].took, now + cases[i].begun);
    CHECK(charged >= cases[i].least && (cases[i].least > 0 || charged == 0));
    CHECK(function->estimate < 200000);
    bool measured = queues[0].open.seen_until > 0;
    CHECK(measured == (cases[i].least > 0));
  }
  /* If it was there, it began in a time slice of this process. */
  for (int there = 0; there < 2; there++) {
    fresh();
    struct gs_function *function = known(0x1000, 20000);
    gs_meter_turn(&meter, 1, now);
    double charged = bracket(0, function, 1, GS_HELD_BRIEFLY, 100000, now + (there ? 4000 : 2000));
    CHECK(near(charged, there ? 100000 : 20000, 1));
  }
}

void check_alike(void) {
  check_what_fits();
  check_charged_what_fits();
  check_burst();
  check_burst_is_charged();
  check_known_lengths_beside();
  check_by_clocks();
}
