#include "interposer/os/ticks.h"

enum {
  MEASURE_NS = 20000000, /* two readings this far apart, each with an error of 100 ns, give the scale to 10 ppm */
  RENEW_NS = 1000000000, /* the clock is slewed now and then: measure the scale anew */
  OFF_NS = 20000,        /* an error above this plus a thousandth: the counter does not run evenly */
  READING_NS = 2000      /* a comparison that took longer was interrupted */
};

static uint64_t give(struct gs_ticks *ticks, uint64_t now) {
  if (now > ticks->last)
    ticks->last = now;
  return ticks->last;
}

static uint64_t scaled(const struct gs_ticks *ticks, uint64_t gone) {
  return (uint64_t)((double)gone * ((double)ticks->scale / 4294967296.0));
}

static void measure(struct gs_ticks *ticks, uint64_t tick, uint64_t now) {
  double ratio;
  if (ticks->from_ns == 0 || tick <= ticks->from_tick) {
    ticks->from_tick = tick;
    ticks->from_ns = now;
  }
  if (now - ticks->from_ns < MEASURE_NS)
    return;
  ratio = (double)(now - ticks->from_ns) / (double)(tick - ticks->from_tick);
  if (ratio < 0.05 || ratio > 1000) { /* frequencies above 20 GHz or below 1 MHz are implausible */
    ticks->broken = true;
    return;
  }
  ticks->scale = (uint64_t)(ratio * 4294967296.0);
  ticks->within = (uint64_t)(GS_TICKS_BELIEVED_NS / ratio);
  if (now - ticks->from_ns > RENEW_NS) {
    ticks->from_tick = tick;
    ticks->from_ns = now;
  }
}

uint64_t gs_ticks_compare(struct gs_ticks *ticks) {
  uint64_t before = gs_ticks_read(), now = gs_now(), tick = gs_ticks_read(), expected;
  if (ticks->broken || tick == 0)
    return give(ticks, now);
  if (!ticks->scale && gs_now() - now > READING_NS)
    return give(ticks, now); /* the first scale rests on two comparisons alone */
  if (ticks->scale) {
    if (tick - before > 0 && scaled(ticks, tick - before) > READING_NS)
      return give(ticks, now);
    expected = ticks->ns + scaled(ticks, tick - ticks->tick);
    if ((expected > now ? expected - now : now - expected) > OFF_NS + (now - ticks->ns) / 1000) {
      ticks->broken = true;
      ticks->within = 0;
      return give(ticks, now);
    }
  }
  ticks->tick = tick;
  ticks->ns = now;
  measure(ticks, tick, now);
  return give(ticks, now);
}
