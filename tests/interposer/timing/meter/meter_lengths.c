/* The rules for how long launches are believed to take, and for what brackets show. */
#include "meter_rules.h"

#include <stddef.h>

static const double ms = 1000000;
enum { WINDOW = 32 /* of lengths.c */ };

static void check_far(void) {
  fresh();
  struct gs_function *quick = known(0x1000, 20000), *tiny = known(0x2000, 1000);
  CHECK(!gs_function_far(quick, 80000) && !gs_function_far(tiny, 50000)); /* the mean stands for them */
  CHECK(gs_function_far(tiny, 51000));
  CHECK(gs_function_far(quick, 81000) && gs_function_far(quick, 81000));
  CHECK(!gs_function_far(quick, 81000)); /* not rare any more */
  for (int i = 0; i < 2; i++)
    CHECK(!gs_function_far(quick, 20000));
  CHECK(gs_function_far(quick, 81000)); /* rare again */
  quick->far = 0;
  quick->spread = 10000; /* where lengths differ, more is needed */
  CHECK(!gs_function_far(quick, 91000) && gs_function_far(quick, 93000));
  quick->far = 0;
  quick->observed = GS_METER_TRUSTED - 1;
  CHECK(!gs_function_far(quick, 81000)); /* nobody knows the mean */
}

static void check_learn(void) {
  fresh();
  struct gs_function *function = known(0x1000, 20000);
  function->weight = WINDOW;
  gs_function_learn(function, 52000, 1, true);
  CHECK(near(function->estimate, 21000, 1) && near(function->spread, 1000, 1));
  function->estimate = 20000;
  function->weight = WINDOW;
  gs_function_learn(function, 52000, 17, true); /* stands for 17 */
  CHECK(near(function->estimate, 20000 + 32000 * 17 / 48, 1));
  /* What was seen less exactly does not count any more. */
  function->exact = false;
  function->shared = true;
  function->weight = WINDOW;
  function->observed = 1;
  gs_function_learn(function, 50000, 1, false);
  CHECK(function->estimate < 45000 && function->observed == 2 && !function->shared);
  gs_function_learn(function, 50000, 1, true);
  CHECK(function->estimate == 50000 && function->observed == GS_METER_TRUSTED);
}

static void check_segment_learn(void) {
  fresh();
  struct gs_function *exact = known(0x1000, 20000), *new = gs_meter_function(&meter, 0x2000);
  struct gs_segment segment = {.launches = 2, .share = 1, .kinds = 2, .kind = {{exact, 0x1000, 1}, {new, 0x2000, 1}}};
  CHECK(!gs_segment_trusted(&segment));
  gs_segment_learn(&segment, 60000, true);
  CHECK(exact->estimate == 20000 && near(new->estimate, 40000, 1) && new->shared);
  gs_segment_learn(&segment, 80000, false); /* the first time without others counts for all before */
  CHECK(near(new->estimate, 60000, 1) && !new->shared);
  gs_segment_learn(&segment, 140000, false);
  CHECK(near(new->estimate, 80000, 1)); /* a third of the way */
  segment.share = 0.5;
  gs_segment_learn(&segment, 200000, false);
  CHECK(near(new->estimate, 80000, 1)); /* half of it were other streams' */
  CHECK(new->observed == GS_METER_TRUSTED && gs_segment_known_alone(&segment));
  segment.unsure = true;
  gs_segment_learn(&segment, 2000000, false);
  CHECK(near(new->estimate, 80000, 1)); /* a launch of it may have been elsewhere */
  segment.unsure = false;
  gs_segment_learn(&segment, 1000 * ms, false);
  CHECK(near(new->estimate, 80000 * (1 + 9.0 / 5), 10)); /* a trusted mean moves by no more than ten at once */
  new->shared = true;
  CHECK(gs_segment_trusted(&segment) && !gs_segment_known_alone(&segment));
  /* The known ones took all of it, as far as is known. */
  fresh();
  exact = known(0x1000, 20000);
  new = gs_meter_function(&meter, 0x2000);
  segment.share = 1;
  gs_segment_learn(&segment, 10000, false);
  CHECK(near(new->estimate, GS_METER_GUESS_NS / 10, 1));
  exact->estimate = 10000;
  new->estimate = 80000;
  new->observed = GS_METER_TRUSTED;
  /* Entries that were given to other functions teach nothing, and are not trusted. */
  new->key = 0x3000;
  CHECK(!gs_segment_trusted(&segment) && gs_segment_now(&segment) == 10000 + GS_METER_GUESS_NS);
}

static void check_without(void) {
  fresh();
  struct gs_function *quick = known(0x1000, 20000), *other = known(0x2000, 5000);
  struct gs_segment segment = {.launches = 4, .other = 6000, .kinds = 2};
  segment.kind[0] = (struct gs_kind){quick, 0x1000, 2};
  segment.kind[1] = (struct gs_kind){other, 0x2000, 1};
  gs_segment_without(&segment, other);
  CHECK(gs_segment_now(&segment) == 46000);
  gs_segment_without(&segment, quick);
  CHECK(gs_segment_now(&segment) == 26000 && segment.launches == 4);
  /* One of those that there was no room for. */
  gs_segment_without(&segment, other);
  CHECK(gs_segment_now(&segment) == 21000);
  gs_segment_without(&segment, known(0x3000, 5000));
  CHECK(gs_segment_now(&segment) == 20000);
}

/* ---- brackets ---- */

static void check_first_of_segment(void) {
  /* It is charged as it was seen, at once; what follows is charged from there on. */
  fresh();
  struct gs_function *quick = known(0x1000, 20000);
  CHECK(bracket(0, quick, 10, GS_HELD, 30000, now + 5000) == 30000);
  CHECK(queues[0].open.seen_until == now + 35000 && queues[0].bracket_done == now + 35000);
  CHECK(gs_segment_now(&queues[0].open) == 0);
  marked(0, quick, 1, now + 6000);
  CHECK(near(done(0, now + 55000), 20000, 10));
  fresh();
  quick = known(0x1000, 20000);
  bracket(0, quick, 10, GS_HELD, 30000, now + 5000);
  marked(0, quick, 0, now + 6000);
  CHECK(done(0, now + 36000) == 0); /* not again by its mark */
  /* Of those behind it only the estimate is known, to a mark and to a wait. */
  for (int wait = 0; wait < 2; wait++) {
    fresh();
    quick = known(0x1000, 20000);
    bracket(0, quick, 10, GS_HELD, 30000, now + 5000);
    CHECK(meter.bracket_ns == 3000);
    gs_meter_launch(&meter, &queues[0], quick, now + 6000, 1);
    if (!wait) {
      marked(0, quick, 0, now + 300000);
      CHECK(near(done(0, now + 300000), 20000, 1));
      continue;
    }
    gs_meter_synced(&meter, &queues[0], now + 300000, (struct gs_waited){0});
    CHECK(near(meter.busy, 50000, 1));
    bracket(0, quick, 10, GS_HELD, 30000, now + 305000);
    gs_meter_synced(&meter, &queues[0], now + 600000, (struct gs_waited){0});
    CHECK(near(meter.busy, 80000, 1));
  }
  /* The stream was held for longer than the calls took: it was not at work then. */
  fresh();
  bracket(0, known(0x1000, 20000), 10, GS_HELD, 20000, now + 25000);
  CHECK(queues[0].open.held_until == now + 25000);
  struct gs_mark *mark = marked(0, known(0x1000, 20000), 4, now + 6000);
  CHECK(mark->expected >= now + 125000);
  done(0, now + 125000);
  CHECK(near(meter.busy, 100000, 100));
}

static void check_in_segment(void) {
  /* What it took differs from the mean: that is charged with its segment. */
  for (uint64_t took = 10000; took <= 60000; took += 50000) {
    fresh();
    struct gs_function *quick = known(0x1000, 20000);
    gs_meter_launch(&meter, &queues[0], quick, now, 1);
    CHECK(bracket(0, quick, 10, GS_HELD, (double)took, now + 20000) == 0);
    CHECK(near(gs_segment_now(&queues[0].open), 20000 + (double)took, 1));
    marked(0, quick, 0, now + 300000);
    CHECK(near(done(0, now + 300000), 20000 + (double)took, 1));
  }
  /* Far longer: charged at once, and others may have been as long where nobody saw the stream idle. */
  fresh();
  struct gs_function *quick = known(0x1000, 20000);
  gs_meter_launch(&meter, &queues[0], quick, now, 1);
  meter.unseen_since = now - 1000000000;
  meter.unseen_until = now + 1000000000;
  CHECK(near(bracket(0, quick, 10, GS_HELD, ms, now + 20000), ms + 9 * 980000, 100));
  CHECK(near(meter.purse, 980000 * 10 / 2, 1) && quick->estimate == 20000);
  CHECK(gs_segment_now(&queues[0].open) == 20000 && queues[0].open.seen_until == 0); /* not again with its segment */
  /* Far shorter: the program was charged too much, which is worth looking for as well. */
  fresh();
  quick = known(0x1000, 100000);
  bracket(0, quick, 10, GS_HELD, 10000, now + 5000);
  CHECK(near(meter.purse, 90000 * 10 / 2, 1));
  fresh();
  quick = known(0x1000, 100000);
  quick->spread = 30000; /* as lengths differ anyway */
  bracket(0, quick, 10, GS_HELD, 10000, now + 5000);
  CHECK(meter.purse == 0);
}

/* Whether a bracket that showed 30 us teaches a function of 20 us. */
static bool teaches(struct gs_function *function, enum gs_held held, double took) {
  function->weight = 4;
  bracket(0, function, 1, held, took, held == GS_HELD ? now + 5000 : 0);
  bool taught = function->estimate != 20000;
  if (taught)
    CHECK(near(function->estimate, 22000, 200) || !function->exact);
  function->estimate = 20000;
  return taught;
}

static void check_teaching(void) {
  fresh();
  CHECK(teaches(known(0x1000, 20000), GS_HELD, 30000));
  /* Another stream launched shortly before, and is not known to be done. If it is, nothing of it is in the sample; but
   * to count only samples in which none launched meanwhile would favour short ones, where many do. */
  for (int i = 0; i < 3; i++) {
    bool done = i > 0, many = i > 1;
    fresh();
    gs_meter_launch(&meter, &queues[1], known(0x2000, 1000), now, 1);
    if (done)
      gs_meter_synced(&meter, &queues[1], now + 2000, (struct gs_waited){0});
    meter.mixed = many ? 0.14 : 0;
    now += 2 * GS_METER_GAP_NS - 1;
    CHECK(teaches(known(0x1000, 20000), GS_HELD, 30000) == (done && !many));
  }
  now += 100000;
  queues[0].end = now;
  CHECK(teaches(known(0x1000, 20000), GS_HELD, 30000));
  /* Where the stream was not held, the time contains the call, 2 us; a function that was measured learns nothing. */
  fresh();
  CHECK(!teaches(known(0x1000, 20000), GS_NOT_HELD, 32000));
  fresh();
  struct gs_function *new = gs_meter_function(&meter, 0x1000);
  bracket(0, new, 1, GS_NOT_HELD, 14000, 0);
  CHECK(near(new->estimate, 12000, 1) && !new->exact);
  now += 100000; /* far longer: the thread may have lost its processor in between */
  new->observed = 2;
  bracket(0, new, 1, GS_NOT_HELD, 62000, 0);
  CHECK(near(new->estimate, 12000, 1));
  /* The entry was given to another function. */
  fresh();
  struct gs_function *gone = known(0x1000, 20000);
  queues[0].again = 1;
  uint32_t plan = gs_meter_launch(&meter, &queues[0], gone, now, 1);
  gs_meter_sampling(&queues[0], gone, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD);
  gone->key = 0x5000;
  gs_meter_sampled(&meter, &queues[0], 30000, now + 5000, 1);
  CHECK(meter.busy == 0 && gone->estimate == 20000);
}

static void check_stalled(void) {
  /* While the stream was held the device was idle: that is not charged. */
  fresh();
  struct gs_function *quick = known(0x1000, 20000);
  queues[0].again = 1;
  uint32_t plan = gs_meter_launch(&meter, &queues[0], quick, now, 1);
  gs_meter_sampling(&queues[0], quick, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD);
  CHECK(queues[0].open.stalled == 5000 && queues[0].end == now + 25000);
  fresh();
  quick = known(0x1000, 20000);
  queues[0].again = 1;
  plan = gs_meter_launch(&meter, &queues[0], quick, now, 1);
  gs_meter_sampling(&queues[0], quick, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD_BRIEFLY);
  CHECK(queues[0].open.stalled == 3000);
  fresh(); /* longer than the calls took, behind a launch of 2 us */
  quick = known(0x1000, 20000);
  gs_meter_launch(&meter, &queues[0], known(0x2000, 2000), now, 1);
  bracket(0, quick, 1, GS_HELD, 20000, now + 15000);
  CHECK(queues[0].open.stalled == 13000 && queues[0].open.held_until == now + 15000);
}

static void check_held(void) {
  /* Until the stream was released, behind the launch before, it was not at work. */
  fresh();
  struct gs_function *quick = known(0x1000, 20000);
  gs_meter_launch(&meter, &queues[0], quick, now, 1);
  bracket(0, quick, 1, GS_HELD, 20000, now + 45000);
  marked(0, quick, 0, now + 6000);
  CHECK(near(done(0, now + 66000), 40000, 1));
}

static void check_handles(void) {
  fresh();
  struct gs_function *function = known(0x1000, 80000);
  CHECK(gs_meter_pace(&meter, 0x1000, 1000000) == 10000 && gs_meter_pace(&meter, 0x1000, 5000) == 5000);
  CHECK(gs_meter_pace(&meter, 0x2000, 1000000) == 1000000);
  gs_meter_reset_function(&meter, 0x1000);
  CHECK(function->observed == 0 && !function->exact && function->estimate == 80000);
  /* A launch that was over before anybody could look. */
  fresh();
  function = gs_meter_function(&meter, 0x2000);
  marked(0, function, 1, now + 12000);
  CHECK(near(done(0, now + 12000), GS_METER_GUESS_NS, 1) && function->observed == 0);
  /* A guess that is longer than the launch can have taken. */
  fresh();
  function = gs_meter_function(&meter, 0x2000);
  marked(0, function, 1, now + 4000);
  CHECK(near(done(0, now + 5000), 5000, 1) && near(function->estimate, 5000, 1));
}

/* A wait returns late. */
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

/* ---- brackets beside others ---- */

enum { SHORTEST_SLICE = GS_METER_SLICE_NS / 10 * 7 };

/* One around a launch of the function, which has a mean of `mean` ns, on a held stream beside others; returns the
 * charge. */
static double held_beside(struct gs_function *function, double mean, uint64_t took) {
  function->estimate = mean;
  function->weight = 4;
  gs_meter_turn(&meter, 1, now);
  return bracket(0, function, 1, GS_HELD, (double)took, now + 5000);
}

static void check_held_beside(void) {
  /* The device reaches a held stream in a time slice of this process: what is shorter is all its own, and teaches. */
  fresh();
  struct gs_function *function = known(0x1000, 0);
  CHECK(held_beside(function, 600000, SHORTEST_SLICE - 1) == SHORTEST_SLICE - 1);
  CHECK(meter.unsettled == 0 && near(function->estimate, 600000 + (SHORTEST_SLICE - 600000) / 4.875, 1));
  fresh();
  function = gs_meter_function(&meter, 0x1000);
  CHECK(held_beside(function, GS_METER_GUESS_NS, 300000) == 300000);
  CHECK(function->exact && function->estimate == 300000);
  /* In a longer time it kept the device, but for the chance that it was switched. That does not teach. */
  fresh();
  function = known(0x1000, 0);
  double kept = SHORTEST_SLICE - 0.7 * SHORTEST_SLICE / 2;
  CHECK(near(held_beside(function, kept, SHORTEST_SLICE), kept, 1) && function->estimate == kept);
  fresh();
  function = known(0x1000, 0);
  double off = (kept - 600000) / (600000 + GS_METER_LATE_NS); /* the less its mean means, the likelier is all of it */
  CHECK(near(held_beside(function, 600000, SHORTEST_SLICE), kept + off * (SHORTEST_SLICE - kept), 1));
  CHECK(function->estimate == 600000);
  /* Nobody knows how long a new one is. */
  fresh();
  function = gs_meter_function(&meter, 0x1000);
  CHECK(held_beside(function, GS_METER_GUESS_NS, 2000000) == 0);
  CHECK(queues[0].open.seen_until == 0 && function->shared && !function->exact && function->observed == 0);
  /* Where the launch came after the first event was reached, the others may have had the device first. */
  for (uint64_t took = 100000; took <= 300000; took += 200000) {
    fresh();
    function = gs_meter_function(&meter, 0x1000);
    gs_meter_turn(&meter, 1, now);
    CHECK(bracket(0, function, 1, GS_NOT_HELD, (double)took + 2000, now + 2000) == 0 &&
          function->estimate == GS_METER_GUESS_NS);
    CHECK(function->observed == (took < GS_METER_UNSLICED_NS) && function->shared == (took > GS_METER_UNSLICED_NS));
  }
}

static void check_partial(void) {
  /* Of launches about as long as a slice the shorter ones are seen better: they teach nothing, where they are known. */
  for (uint64_t others_in = 0; others_in <= 2000000; others_in += 2000000)
    for (int exact = 0; exact < 2; exact++)
      for (double mean = 865000; mean <= 885000; mean += 20000) {
        fresh();
        struct gs_function *function = known(0x1000, mean);
        function->weight = 4;
        function->exact = exact;
        gs_meter_turn(&meter, 1, now + others_in);
        CHECK(bracket(0, function, 1, GS_HELD, ms, now + 5000) == ms);
        CHECK((function->estimate == mean) == (others_in == 0 && exact && mean > SHORTEST_SLICE / 2));
      }
  /* One that was far longer is worth looking for more. */
  fresh();
  held_beside(known(0x1000, 0), 900000, 40000000);
  CHECK(near(meter.busy, 20 * ms, 1) && near(meter.purse, (20 - 0.9) / 2 * ms, 1));
}

static void check_residents(void) {
  /* The grant's other processes may have had a part: it is charged with its segment, as long as its length is not
   * known. */
  for (int new = 0; new < 2; new++)
    for (uint64_t took = SHORTEST_SLICE - 1; took <= SHORTEST_SLICE; took++) {
      fresh();
      struct gs_function *function = new ? gs_meter_function(&meter, 0x1000) : known(0x1000, 200000);
      double before = function->estimate;
      function->spread = ms; /* it may well take as long */
      function->weight = 4;
      queues[0].again = 1;
      uint32_t plan = gs_meter_launch(&meter, &queues[0], function, now, 1);
      gs_meter_sampling(&queues[0], function, plan, now, now + 1000, now + 3000, now + 5000, GS_HELD);
      gs_meter_sampled(&meter, &queues[0], (double)took, now + 5000, 2);
      bool own = took < SHORTEST_SLICE; /* a held stream is reached in a time slice of this process */
      CHECK((meter.busy > 0) == (own || !new) && (queues[0].open.seen_until > 0) == (own || !new));
      CHECK((function->estimate != before) == own && function->exact == (own || !new));
    }
}

void check_brackets(void) {
  check_held_beside();
  check_partial();
  check_residents();
  check_held();
  check_handles();
  check_far();
  check_learn();
  check_segment_learn();
  check_without();
  check_first_of_segment();
  check_in_segment();
  check_teaching();
  check_stalled();
  check_returns_behind_brackets();
}
