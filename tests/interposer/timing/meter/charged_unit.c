/* The total charge of two processes of one grant that use the device at the same time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interposer/meter/meter.h"
#include "page/gs_page.h"
#include "../../../support/check.h"

/* Equal, to within a word at either end. */
static bool nearly(double found, double expected) {
  const double word = 1 << GS_CHARGED_SHIFT;
  return found > expected - 2 * word && found < expected + 2 * word;
}

int main(void) {
  static struct gs_charged charged;
  static struct gs_meter meter, other;
  const uint64_t ms = 1000000, known = (uint64_t)GS_CHARGED_OLD_WORDS << GS_CHARGED_OLD_SHIFT;
  uint64_t now = 1000000000000u;
  meter.charged = other.charged = &charged;
  meter.residents = other.residents = 2;
  /* Both wait for the device in the same 10 ms. */
  CHECK(nearly(gs_timeline_add(&meter, now, now + 10 * ms, 10e6, 1), 10e6));
  CHECK(nearly(gs_timeline_add(&other, now, now + 10 * ms, 10e6, 1), 0));
  CHECK(nearly(gs_timeline_add(&other, now + 8 * ms, now + 12 * ms, 4e6, 1), 2e6));
  /* One worked for 3 and the other for 6 of the same 10 ms, at unknown times: both are charged in full. */
  now += 20 * ms;
  CHECK(nearly(gs_timeline_add(&meter, now, now + 10 * ms, 3e6, 1), 3e6));
  CHECK(nearly(gs_timeline_add(&other, now, now + 10 * ms, 6e6, 1), 6e6));
  CHECK(nearly(gs_timeline_add(&other, now, now + 10 * ms, 10e6, 1), 1e6));
  /* One worked for the first 5 ms; the other's 5 ms of the 10 fit into the rest. */
  now += 20 * ms;
  CHECK(nearly(gs_timeline_add(&meter, now, now + 5 * ms, 5e6, 1), 5e6));
  CHECK(nearly(gs_timeline_add(&other, now, now + 10 * ms, 5e6, 1), 5e6));
  /* Two that waited for 400 ms for the same device, of which both had half: not more than 400 ms in all. Of the older part
   * of it, longer intervals are known. */
  const double interval = 1 << GS_CHARGED_OLD_SHIFT;
  now += 20 * ms;
  CHECK(nearly(gs_timeline_add(&meter, now + 200 * ms, now + 400 * ms, 200e6, 1), 200e6));
  CHECK(gs_timeline_add(&other, now + 200 * ms, now + 400 * ms, 200e6, 1) < 2 * interval);
  CHECK(gs_timeline_add(&other, now, now + 200 * ms, 200e6, 1) > 200e6 - 2 * interval);
  CHECK(gs_timeline_add(&meter, now, now + 200 * ms, 200e6, 1) < 2 * interval);
  now += 400 * ms;
  /* Time further back than the words record is charged as the process's own time line has it. */
  now += 20 * ms;
  CHECK(nearly(gs_timeline_add(&meter, now, now + 2 * known, 2 * (double)known, 1), 2 * (double)known));
  CHECK(nearly(gs_timeline_add(&other, now, now + known / 2, (double)known / 2, 1), (double)known / 2));
  /* Forged words: of a later instant, for short intervals only, and full beyond what they hold. */
  uint64_t later = now + 3 * known;
  memset(charged.word, 0xff, sizeof charged.word);
  CHECK(gs_timeline_add(&meter, later, later + 10 * ms, 10e6, 1) > 10e6 - 2 * interval);
  CHECK(gs_timeline_add(&other, later, later + 10 * ms, 10e6, 1) < 2 * interval);
  later += known;
  for (uint64_t number = later >> GS_CHARGED_SHIFT; number <= (later + 10 * ms) >> GS_CHARGED_SHIFT; number++)
    charged.word[number % GS_CHARGED_WORDS] = number << GS_CHARGED_BITS | ((1 << GS_CHARGED_BITS) - 1);
  CHECK(gs_timeline_add(&meter, later, later + 10 * ms, 10e6, 1) == 0);
  memset(&charged, 0xff, sizeof charged);
  CHECK(nearly(gs_timeline_add(&meter, later + known, later + known + 10 * ms, 10e6, 1), 10e6));
}
