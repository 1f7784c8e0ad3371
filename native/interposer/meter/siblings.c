/* The grant's other processes. What keeps a launch of known length waiting is their work, and the device's changes between
 * them; it is charged where it was done. Only what nobody was charged for, and changes do not explain, was this process's
 * own after all: that is known once all have seen the end of what they had on the device. */
#include "interposer/meter/charged.h"
#include "interposer/meter/lengths.h"
#include "page/gs_page.h"

static const double ALONE = 0.02; /* so small a part of it is charged to others because words are coarse */
enum {
  REPORTED_NS = 40000000, /* by then the others know what they had: a thread may wait for a processor for so long */
  COVERED_NS = 80000000,  /* the words still hold so much of the time before it then */
  INEXACT = 16,           /* what the others are charged may be less than what they did by a part in so many */
  CHANGES = 20            /* work of so long is followed by a change that takes up to this many times as long */
};

/* What the others are charged in that time by now: in whole words, if there are any, since what came before and after may
 * share a word with it. This process was charged for its end, as far as anyone knows. It may be so long ago that less is
 * known than before. Where all that is known is its own, the others had the rest. */
static void look(const struct gs_meter *meter, struct gs_among *one) {
  const uint64_t word = UINT64_C(1) << GS_CHARGED_SHIFT;
  double rest = after(one->to, one->from) - one->own;
  uint64_t least = one->to - COVERED_NS > one->from ? one->to - COVERED_NS : one->from;
  uint64_t from = (least + word - 1) / word * word, to = one->to / word * word, own = one->to - (uint64_t)one->own;
  if (!meter->charged || rest <= 0)
    return;
  if (to <= from) {
    from = least;
    to = one->to;
  }
  double mine = after(to, own > from ? own : from), looked = after(to, from) - mine;
  double theirs = maximum(gs_charged_between(meter->charged, from, to) - mine, 0);
  one->theirs = maximum(one->theirs, looked > 0 ? minimum(theirs / looked, 1) * rest : rest);
}

/* Returns what nobody was charged for before. The time line may have forgotten that time, so that only the words that all
 * processes share keep it from being charged twice; what they have forgotten is not charged. */
static double charge(struct gs_meter *meter, uint64_t from, uint64_t to, double ns) {
  if (to <= from || ns <= 0)
    return 0;
  double counted = gs_charged_add(meter->charged, from, to, minimum(ns / (double)(to - from), 1), 0);
  meter->busy += counted;
  return counted;
}

/* It stands for others, none of which was seen to end since then: they may have taken as long. */
static void charge_others(struct gs_meter *meter, const struct gs_among *one, double missed) {
  uint64_t since = one->from - COVERED_NS > one->since ? one->from - COVERED_NS : one->since;
  if (one->since > 0 && missed > GS_METER_KNEE * one->own && missed > GS_METER_GAP_NS)
    charge(meter, since, one->from, missed * (one->weight - 1));
}

/* Nobody else had the device then: its launches took as long as was seen. */
static void learn(const struct gs_meter *meter, const struct gs_among *one) {
  const struct gs_kind *kind = &one->whole;
  double each = one->pending / maximum(kind->launches, 1);
  if (kind->launches == 0 || kind->function->key != kind->key || kind->function->epoch != meter->epoch ||
      kind->function->observed < GS_METER_TRUSTED)
    return;
  if (!gs_function_far(kind->function, each))
    gs_function_learn(kind->function, each, kind->launches > 1 ? kind->launches : one->weight, kind->launches == 1);
}

static void explain(struct gs_meter *meter, struct gs_among *one) {
  if (!meter->charged)
    return;
  look(meter, one);
  double changes = minimum(CHANGES * one->theirs, (double)one->residents * GS_METER_SWITCH_NS);
  changes += (one->came ? GS_METER_GAP_NS : 0) + one->theirs / INEXACT;
  double missed = one->pending - one->own - one->theirs - changes;
  if (!one->came && one->theirs < ALONE * one->pending)
    learn(meter, one);
  if (missed <= (one->came ? GS_METER_GAP_NS : GS_METER_CLOCK_NS)) /* the host itself may have been as late */
    return;
  double found = charge(meter, one->from, one->to, missed);
  charge_others(meter, one, missed);
  meter->balance = maximum(meter->balance - found, 0);
  gs_meter_late(meter, found, found);
  gs_purse_found(meter, found * one->weight);
}

static struct gs_among *oldest(struct gs_meter *meter) { return &meter->among[meter->explained % GS_METER_AMONG]; }

static void explain_oldest(struct gs_meter *meter) {
  explain(meter, oldest(meter));
  __atomic_store_n(&meter->explained, meter->explained + 1, __ATOMIC_RELAXED);
}

void gs_siblings_note(struct gs_meter *meter, struct gs_among one) {
  if (one.to <= one.from || (one.whole.launches == 0 && one.pending < one.own + GS_METER_LATE_NS))
    return;
  one.weight = maximum(one.weight, 1);
  if (one.weight > 1 && one.from < meter->unseen_until)
    one.since = meter->unseen_since;
  look(meter, &one);
  if (meter->noted - meter->explained == GS_METER_AMONG)
    explain_oldest(meter);
  meter->among[meter->noted % GS_METER_AMONG] = one;
  __atomic_store_n(&meter->noted, meter->noted + 1, __ATOMIC_RELAXED);
}

void gs_meter_explain(struct gs_meter *meter, uint64_t now) {
  while (gs_meter_unexplained(meter) && now >= oldest(meter)->to + REPORTED_NS)
    explain_oldest(meter);
}

double gs_siblings_left(double had, uint32_t residents) {
  return residents <= 1 ? had : maximum(had - (residents - 1.0) * GS_METER_SLICE_NS, 0);
}
