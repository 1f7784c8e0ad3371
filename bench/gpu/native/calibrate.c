#include "calibrate.h"

#include <stdlib.h>

enum { ROUNDS = 9, LAUNCHES = 100 };

static const double LONG_NS = 2e6; /* the cost of events around it is a thousandth */
static const double HEAT_NS = 3e8; /* clocks rise */
/* longer than the host takes to launch, so that the device never waits for it */
static const double SHORT_NS = 20000;
static const uint64_t AMOUNT_MAX = 1ull << 48;

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values) {
  qsort(values, ROUNDS, sizeof *values, ascending);
  return values[ROUNDS / 2];
}

/* Each figure is a difference of two times, so that costs that are the same in both, like those of the events, cancel out. */
bool calibrate(time_of_launches *time, void *of, struct calibration *out) {
  double more[ROUNDS], grown;
  uint64_t amount = 1000, piece;
  time(of, 1, 1); /* not counted: the driver loads a kernel when it is first launched */
  while (time(of, 1, amount) < LONG_NS)
    if ((amount *= 2) > AMOUNT_MAX)
      return false;
  for (double heat = 0; heat < HEAT_NS;)
    heat += time(of, 1, amount);
  for (int i = 0; i < ROUNDS; i++)
    more[i] = time(of, 1, 2 * amount) - time(of, 1, amount);
  if (!((grown = median(more)) > 0))
    return false;
  out->rate = (double)amount / grown;
  piece = (uint64_t)(SHORT_NS * out->rate) + 1;
  for (int i = 0; i < ROUNDS; i++) /* the same work in twice as many launches */
    more[i] = (time(of, 2 * LAUNCHES, piece) - time(of, LAUNCHES, 2 * piece)) / LAUNCHES;
  grown = median(more);
  out->launch_ns = grown > 0 ? grown : 0;
  return true;
}

uint64_t calibrated_amount(const struct calibration *calibration, uint64_t ns) {
  double iterations = ((double)ns - calibration->launch_ns) * calibration->rate;
  return iterations < 1 ? 1 : (uint64_t)(iterations + 0.5);
}
