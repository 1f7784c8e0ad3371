/* The rules for other processes of the same grant, which have the device in between: what they are charged is theirs. */
#include "meter_rules.h"

#include <string.h>

#include "interposer/meter/charged.h"
#include "page/gs_page.h"

static const double ms = 1000000;
static const uint64_t US = 1000, MS = 1000000, REPORTED = 40000000;
static struct gs_charged words;

/* Words are coarse: at either end, one may hold what came before or after. */
static const double COARSE = 2 * (1 << GS_CHARGED_SHIFT);

static void among(uint32_t residents) {
  fresh();
  memset(&words, 0, sizeof words);
  meter.charged = &words;
  meter.residents = residents;
}

static void theirs(uint64_t from, uint64_t to) { gs_charged_add(&words, from, to, 1, 1); }

/* `n` launches of 20 us were made now, and done at `at`; returns what is charged for them at once. */
static double reaped(struct gs_function *function, uint32_t n, uint64_t at) {
  double before = meter.busy;
  queues[0].made = now + 2 * US;
  marked(0, function, n, now + 3 * US);
  gs_meter_reap(&meter, &queues[0], at, 1, meter.residents);
  return meter.busy - before;
}

/* What is charged later. */
static double explained(uint64_t after) {
  double before = meter.busy;
  gs_meter_explain(&meter, after);
  return meter.busy - before;
}

static void check_explained(void) {
  /* It is charged what it takes, at its end: the others, who are charged later, had what came before. */
  among(2);
  struct gs_function *function = known(0x1000, 20000);
  uint64_t done = now + 2 * MS;
  CHECK(near(reaped(function, 1, done), 20000, 1));
  CHECK(gs_charged_between(&words, done - MS, done - MS / 2) == 0);
  theirs(now, done - 20 * US);
  CHECK(explained(done + REPORTED - 1) == 0 && explained(done + REPORTED) == 0);
  CHECK(function->estimate == 20000 && meter.purse == 0);
  /* Nobody was charged for it: it was its own, but for the time in which the device changed to it. */
  among(2);
  function = known(0x1000, 20000);
  CHECK(near(reaped(function, 1, now + 2 * MS), 20000, 1) && explained(now + 2 * MS + REPORTED - 1) == 0);
  CHECK(near(explained(now + 2 * MS + REPORTED), 2 * ms - 20000 - GS_METER_GAP_NS, COARSE));
  CHECK(meter.purse > 0 && function->estimate == 20000);
  /* The others had half of it. */
  among(2);
  function = known(0x1000, 20000);
  reaped(function, 1, now + 2 * MS);
  theirs(now, now + MS);
  CHECK(near(explained(now + 2 * MS + REPORTED), ms - 20000 - 2 * GS_METER_SWITCH_NS - GS_METER_GAP_NS - ms / 16,
             COARSE));
  /* The more short work they had, the more often the device may have changed, but not without any. */
  for (uint32_t residents = 2; residents < 40; residents *= 4) {
    among(residents);
    function = known(0x1000, 20000);
    reaped(function, 1, now + 4 * MS);
    theirs(now + 2 * MS, now + 2 * MS + 10 * US);
    double changes = residents * GS_METER_SWITCH_NS < 200000 ? residents * GS_METER_SWITCH_NS : 200000;
    CHECK(near(explained(now + 4 * MS + REPORTED), 4 * ms - 30000 - GS_METER_GAP_NS - changes, COARSE));
  }
}

/* So late that nobody knows any more what others were charged for that time: it is not taken for its own. A while before
 * that, only longer intervals are known. */
static void check_forgotten(void) {
  const uint64_t precise = (uint64_t)GS_CHARGED_WORDS << GS_CHARGED_SHIFT;
  const uint64_t known_for = (uint64_t)GS_CHARGED_OLD_WORDS << GS_CHARGED_OLD_SHIFT;
  for (int all = 0; all < 2; all++)
    for (uint64_t length = 8 * MS; length < precise; length *= 4) {
      among(2);
      uint64_t done = now + length, later = done + 2 * (all ? known_for : precise);
      reaped(known(0x1000, 20000), 1, done);
      theirs(now, done - 20 * US);
      theirs(done, later);
      double found = explained(later);
      CHECK(all ? found == 0 : found < 1 << GS_CHARGED_OLD_SHIFT);
    }
}

/* Of longer ones the last part is all that is known later, and is its own: the others had the rest. */
static void check_longer_than_known(void) {
  for (uint64_t length = 20 * MS; length <= 400 * MS; length *= 2)
    for (int alone = 0; alone < 2; alone++) {
      among(2);
      uint64_t end = now + 2 * length;
      reaped(known(0x1000, (double)length), 1, end);
      if (!alone)
        theirs(now, end - length);
      double found = explained(end + REPORTED);
      CHECK(!alone || length >= 80 * MS ? near(found, 0, COARSE) : near(found, (double)length, (double)length / 8));
    }
}

static void check_learned(void) {
  /* Work that went on without a break while nobody else had any shows how long it is. */
  for (int had = 0; had < 2; had++)
    for (int came = 0; came < 2; came++) {
      among(2);
      struct gs_function *function = known(0x1000, 20000);
      function->weight = 4;
      if (!came)
        reaped(function, 1, now + 100 * US);
      uint64_t from = came ? now : now + 100 * US;
      reaped(function, 10, from + 300 * US);
      if (had)
        theirs(from + 100 * US, from + 120 * US);
      explained(from + 300 * US + REPORTED);
      CHECK((function->estimate > 21000) == (!came && !had));
    }
}

static void check_chosen(void) {
  /* One that was measured in place of others: they may have taken as long, where nobody saw their end. */
  for (int unseen = 0; unseen < 2; unseen++) {
    among(2);
    now += 100 * MS;
    meter.unseen_since = now - 50 * MS;
    meter.unseen_until = unseen ? now + MS : now - MS;
    struct gs_function *function = known(0x1000, 20000);
    queues[0].again = 4;
    uint32_t plan = gs_meter_launch(&meter, &queues[0], function, now, 1);
    CHECK(plan & GS_PLAN_SAMPLE);
    gs_meter_sampling(&queues[0], function, plan, now, now + US, now + 3 * US, now + 5 * US, GS_HELD);
    gs_meter_sampled(&meter, &queues[0], 5 * ms, now + 5 * US, 2);
    CHECK(near(meter.busy, 20000, 1) && function->estimate == 20000);
    CHECK(near(explained(now + 6 * MS + REPORTED), unseen ? 4 * 4.98 * ms : 4.98 * ms, 2 * COARSE));
  }
}

static void check_late_wait(void) {
  /* A wait that returned late, nobody knows why, is explained too. */
  among(3);
  gs_meter_launch(&meter, &queues[0], known(0x1000, 20000), now, 1);
  gs_meter_synced(&meter, &queues[0], now + 2 * MS, (struct gs_waited){now, now + 2 * MS, 3, true});
  CHECK(near(meter.busy, 20000, 1) && meter.ask != 0 && meter.purse == 0);
  theirs(now, now + 2 * MS - 20 * US);
  CHECK(near(explained(now + 2 * MS + REPORTED), 0, 1));
  among(3);
  gs_meter_launch(&meter, &queues[0], known(0x1000, 20000), now, 1);
  gs_meter_synced(&meter, &queues[0], now + 2 * MS, (struct gs_waited){now, now + 2 * MS, 3, true});
  CHECK(near(explained(now + 2 * MS + REPORTED), 2 * ms - 20000 - GS_METER_GAP_NS, COARSE) && meter.purse > 0);
}

static void check_long(void) {
  /* Work that is seen to go on is charged once each of the others has had a slice. */
  for (uint32_t residents = 1; residents < 4; residents++) {
    among(residents);
    struct gs_function *function = known(0x1000, 20000);
    queues[0].made = now + 2 * US;
    marked(0, function, 1, now + 3 * US);
    gs_meter_unready(&meter, &queues[0], now + 20 * MS, residents);
    CHECK(near(meter.busy, (20 - 2.5 * (residents - 1)) * ms, COARSE));
    gs_meter_reap(&meter, &queues[0], now + 20 * MS, 1, residents);
    CHECK(near(meter.busy, (20 - 2.5 * (residents - 1)) * ms, COARSE));
    explained(now + 20 * MS + REPORTED);
    CHECK(near(meter.busy, 20 * ms, COARSE));
  }
}

static void check_refund(void) {
  /* What was charged too much is given back, unless others of the grant were denied it. */
  for (uint32_t residents = 1; residents < 3; residents++) {
    among(residents);
    gs_meter_refund(&meter, ms);
    gs_meter_refund(&meter, -ms);
    CHECK(meter.credit == (residents == 1 ? ms : 0));
  }
}

static void check_many(void) {
  /* More of them than there is room for: the first ones are explained sooner. */
  among(2);
  struct gs_function *function = known(0x1000, 20000);
  double charged = 0;
  for (int i = 0; i <= GS_METER_AMONG; i++) {
    charged = reaped(function, 1, now + MS / 4);
    CHECK((charged > 100000) == (i == GS_METER_AMONG));
    now += MS / 4;
  }
  CHECK(meter.noted - meter.explained == GS_METER_AMONG);
}

void check_siblings(void) {
  check_explained();
  check_forgotten();
  check_longer_than_known();
  check_learned();
  check_chosen();
  check_late_wait();
  check_long();
  check_refund();
  check_many();
}
