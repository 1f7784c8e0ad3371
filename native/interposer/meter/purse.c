/* Which launches are measured. Measuring costs the program host time: with PyTorch on an H200 a mark takes 10 us of the
 * 10 to 30 us between two launches, as an event is recorded, queried and read with none of that in the caches. So each
 * launch is chosen with the chance at which measuring takes one part in GS_METER_INCOME of the program's time, by what it
 * is between launches, or was before this one if that is far more, that of longer pauses being saved for the launches
 * after them. It is chosen with more than that while there is something in the purse, half of the time that measuring has
 * uncovered; but the purse only pays for marks, since brackets cost more and show no more of launches that are far from
 * the mean.
 *
 * Whether a launch is chosen is settled at random before the program can know it: no launch can be made because
 * another one was not measured. Chances add up until they reach a number that was drawn from the exponential
 * distribution, which has no memory, so that the chance may change meanwhile. */
#include "interposer/meter/lengths.h"
#include "interposer/meter/repeats.h"

enum {
  STEP = 16,           /* steps of 1/STEP towards the median: how much longer than usual a call took does not matter, */
  AT_FIRST_NS = 10000, /* nor that the first thread that called lost its processor */
  MOST_NS = 40000,     /* upper bound: a program that makes the driver slow is measured all the same */
  UNUSUAL = 8,         /* the time before a launch counts by itself if it is so many times what it is on average */
  HORIZON = 8,         /* the cost of this many measurements in the purse is worth a chance of 1 */
  PURSE_NS = 25000000  /* and no more than this is kept */
};
static const double certain = 3; /* of 20 launches with this chance, one is not chosen: then it is not left to chance */

static double usually(double usual, double ns) {
  if (usual == 0)
    return ns < AT_FIRST_NS ? ns : AT_FIRST_NS;
  usual += (ns > usual ? usual : -usual) / STEP;
  return usual < MOST_NS ? usual : MOST_NS;
}

static void cost_changed(struct gs_meter *meter) {
  double cost = maximum(maximum(meter->record_ns, meter->bracket_ns) + meter->read_ns, 1000);
  meter->per_interval = 1 / (GS_METER_INCOME * cost);
  meter->per_purse = 1 / (HORIZON * cost);
}

static double usual_chance(const struct gs_meter *meter) {
  double interval = meter->gap > UNUSUAL * meter->interval ? meter->gap : meter->interval;
  return interval * meter->per_interval + meter->saved * meter->per_purse;
}
double gs_purse_chance(const struct gs_meter *meter) { return usual_chance(meter) + meter->purse * meter->per_purse; }

static void purse_is(struct gs_meter *meter, double ns) {
  meter->purse = ns;
  __atomic_store_n(&meter->uncovered, ns * meter->per_purse > meter->interval * meter->per_interval, __ATOMIC_RELAXED);
}

/* Each pays its part; that of the time between launches is spent at once. */
void gs_purse_pay(struct gs_meter *meter, double ns) {
  double per_chance = ns / maximum(gs_purse_chance(meter), 1e-9) * meter->per_purse;
  meter->saved = maximum(meter->saved - meter->saved * per_chance, 0);
  purse_is(meter, maximum(meter->purse - meter->purse * per_chance, 0));
}

void gs_purse_found(struct gs_meter *meter, double ns) {
  purse_is(meter, minimum(meter->purse + maximum(ns, 0) / 2, PURSE_NS));
}

void gs_meter_recorded(struct gs_meter *meter, double ns) {
  meter->record_ns = usually(meter->record_ns, ns);
  gs_purse_pay(meter, meter->record_ns);
  cost_changed(meter);
}

void gs_meter_read(struct gs_meter *meter, double ns) {
  meter->read_ns = usually(meter->read_ns, ns);
  gs_purse_pay(meter, meter->read_ns);
  cost_changed(meter);
}

void gs_meter_bracketed(struct gs_meter *meter, double ns) {
  meter->bracket_ns = usually(meter->bracket_ns, ns);
  gs_purse_pay(meter, meter->bracket_ns);
  cost_changed(meter);
}

void gs_purse_earn(struct gs_meter *meter, uint64_t now, uint32_t launches) {
  enum { PAUSE_NS = 1000000, OVER = 64 /* launches over which the interval is averaged */ };
  double gone = meter->counted ? after(now, meter->counted) : 0, pause = maximum(gone - PAUSE_NS, 0);
  meter->counted = now;
  /* Sooner, a launch may be booked only because it is about to be chosen: that would count its chance twice. */
  meter->gap = gone >= GS_REPEAT_WITHIN_NS ? (gone - pause) / maximum(launches, 1) : 0;
  if (launches > 0)
    meter->interval += ((gone - pause) / launches - meter->interval) * minimum((double)launches / OVER, 1);
  if (pause > 0)
    meter->saved = minimum(meter->saved + pause / GS_METER_INCOME, certain / maximum(meter->per_purse, 1e-9));
}

/* -ln(x / 2^32), to 0.0002; without libm, which not every program has loaded. x > 0. */
static double minus_log(uint32_t x) {
  uint32_t power = 31 - (uint32_t)__builtin_clz(x);
  double t = (double)x / (double)(UINT64_C(1) << power), z = (t - 1) / (t + 1), z2 = z * z;
  return (32 - power) * 0.69314718 - 2 * z * (1 + z2 * (1.0 / 3 + z2 / 5));
}

/* From the exponential distribution with mean 1. */
static double drawn(struct gs_meter *meter) {
  meter->choice = (meter->choice + meter->counted) * 6364136223846793005u + 1442695040888963407u;
  return minus_log((uint32_t)(meter->choice >> 32) | 1);
}

bool gs_purse_usual(struct gs_meter *meter) { /* of the two chances, that one came first */
  double more = meter->purse * meter->per_purse;
  return drawn(meter) * more <= drawn(meter) * usual_chance(meter);
}

bool gs_purse_chosen(struct gs_meter *meter, struct gs_queue *queue, double *weight) {
  double chance = gs_purse_chance(meter);
  if (queue->again > 0 || chance >= certain) {
    *weight = maximum(queue->again, 1);
    queue->again = 0;
    return true;
  }
  if (queue->due == 0)
    queue->due = drawn(meter);
  queue->due -= chance;
  if (queue->due > 0)
    return false;
  queue->due = drawn(meter);
  *weight = 1 / chance + 0.5 + chance / 12; /* the first terms of 1 / (1 - exp(-chance)) */
  return true;
}

uint32_t gs_meter_unchosen(struct gs_meter *meter, struct gs_queue *queue, uint32_t n) {
  double chance = gs_purse_chance(meter);
  if (queue->again > 0 || chance >= certain)
    return 0;
  if (queue->due <= 0)
    queue->due = drawn(meter);
  return chance * n < queue->due ? n : (uint32_t)(queue->due / chance);
}
