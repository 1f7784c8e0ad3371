/* The part of the meter that is common to the processes of a grant: which device time they were charged. */
#include "interposer/meter/charged.h"

#include <stdbool.h>

#include "page/gs_page.h"

static const uint64_t length = UINT64_C(1) << GS_CHARGED_SHIFT; /* ns per word */

static double minimum(double a, double b) { return a < b ? a : b; }

/* Charges up to `want` ns of the time that the word is for; returns how much of that no process was charged before. */
static double charge(uint64_t *word, uint64_t number, double want, double part) {
  uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED), taken, after;
  do {
    uint64_t filled = before & ((UINT64_C(1) << GS_CHARGED_BITS) - 1), room;
    if (before >> GS_CHARGED_BITS > number)
      return want * part;
    if (before >> GS_CHARGED_BITS < number)
      filled = 0;
    room = filled < length ? length - filled : 0;
    taken = want < (double)room ? (uint64_t)(want + 0.5) : room;
    after = number << GS_CHARGED_BITS | (filled + taken);
  } while (!__atomic_compare_exchange_n(word, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return minimum((double)taken, want);
}

/* Charges up to `want` ns, and up to `density` of each ns. */
static double spread(uint64_t *charged, uint64_t from, uint64_t to, double density, double want, double part) {
  double sum = 0;
  for (uint64_t number = from >> GS_CHARGED_SHIFT; from < to && sum < want; number++) {
    uint64_t end = (number + 1) << GS_CHARGED_SHIFT;
    if (end > to)
      end = to;
    sum +=
        charge(&charged[number % GS_CHARGED_WORDS], number, minimum((double)(end - from) * density, want - sum), part);
    from = end;
  }
  return sum;
}

double gs_charged_add(uint64_t *charged, uint64_t from, uint64_t to, double density, double part) {
  uint64_t known = to > GS_CHARGED_WORDS * length ? to - GS_CHARGED_WORDS * length : 0;
  double want, sum, older = 0;
  if (from < known) {
    older = (double)(known - from) * density * part;
    from = known;
  }
  want = (double)(to - from) * density;
  sum = spread(charged, from, to, density, want, part);
  /* Only how much it was is known, not when: where others were charged, it was at another time between the two. */
  if (density < 1)
    sum += spread(charged, from, to, 1 - density, want - sum, part);
  return older + sum;
}
