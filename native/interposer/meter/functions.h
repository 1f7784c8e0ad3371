/* Internal to the meter: the functions of a segment, and what its parts share. */
#ifndef GPUSHARE_METER_FUNCTIONS_H
#define GPUSHARE_METER_FUNCTIONS_H

#include "interposer/meter/meter.h"

static inline double minimum(double a, double b) { return a < b ? a : b; }
static inline double maximum(double a, double b) { return a > b ? a : b; }

/* Whether the estimates of all functions in the segment are trusted. */
bool gs_segment_trusted(const struct gs_segment *segment);
/* Whether all functions in the segment were observed while no others were on the device. */
bool gs_segment_known_alone(const struct gs_segment *segment);

/* Whether brackets have shown how long it takes, or at least how long at most. */
static inline bool gs_function_shown(const struct gs_function *function) {
  return function->kind == GS_SAMPLE_EXACT || function->kind == GS_SAMPLE_COMPANY;
}

/* Whether enough of its launches were bracketed, or tried to be. */
static inline bool gs_function_known(const struct gs_function *function) {
  return function->observed >= GS_METER_TRUSTED &&
         ((function->samples >= GS_METER_TRUSTED && function->kind == GS_SAMPLE_EXACT) ||
          function->tries == GS_METER_TRIES);
}

enum gs_observed {
  GS_OBSERVED_BACKLOGGED, /* the queue was never empty */
  GS_OBSERVED_ALONE,
  GS_OBSERVED_SHARED /* others were on the device too */
};
/* Scales the estimates of a segment's functions towards the time that it really took, in ns. */
void gs_segment_learn(const struct gs_segment *segment, double took, enum gs_observed how);
/* Its launches were charged by a guess. */
void gs_segment_guessed(const struct gs_segment *segment, double charged);
/* Its functions may take much longer than before: their next launches are observed again. */
void gs_segment_distrust(const struct gs_segment *segment);

/* The longer of two times between measurements: what they cost allows, and what is enough. */
static inline uint64_t gs_meter_every(double allowed, uint64_t enough) {
  return allowed > (double)enough ? (uint64_t)allowed : enough;
}
/* Host time that a mark takes with what it takes to read it. */
static inline double gs_meter_mark_ns(const struct gs_meter *meter) { return meter->record_ns + meter->read_ns; }
/* Whether a launch that takes so long, onto an empty queue, has a mark of its own. */
static inline bool gs_meter_own_mark(const struct gs_meter *meter, double estimate) {
  return estimate >= GS_METER_ALONE_MOST_NS ||
         estimate >= (double)gs_meter_every(GS_METER_MARK_PRICE * gs_meter_mark_ns(meter), GS_METER_ALONE_NS);
}
/* A bracket took the program so many ns. */
void gs_meter_bracketed(struct gs_meter *meter, double ns);
/* Time between two bracketed launches of a stream, on average. */
static inline uint64_t gs_queue_sample_every(const struct gs_meter *meter, const struct gs_queue *queue) {
  return gs_meter_every(GS_METER_BRACKET_PRICE * meter->bracket_ns, (uint64_t)GS_METER_SAMPLE_NS << queue->agreed);
}
/* How much of the time that work took says something about its own length. The other processes of the grant have their
 * turns first. */
static inline double gs_own_time(double took, uint32_t residents) {
  if (residents <= 1)
    return took;
  return took > GS_METER_UNSLICED_NS ? took - GS_METER_UNSLICED_NS : 0;
}
/* Whether work took so much longer than expected that the estimate is wrong. */
static inline bool gs_is_late(double took, double expected) { return took > 2 * expected + GS_METER_LATE_NS; }
/* Whether the device worked for much longer after the record of the mark than expected, even if other streams had it
 * first. total: time that its launches take, as estimated. lag: time since the record. */
bool gs_mark_late(const struct gs_mark *mark, double total, double lag);
/* Work of the queue is no longer in flight. */
void gs_queue_landed(struct gs_meter *meter, struct gs_queue *queue, double estimate, uint32_t unobserved);
/* Charges by estimate, within a span that bounds the charge. Returns the charge. */
double gs_queue_fit(struct gs_queue *queue, const struct gs_segment *segment, double want, double span);
/* Whether a launch is bracketed. Returns enum gs_plan bits. */
uint32_t gs_meter_plan_sample(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function,
                              uint64_t now);
/* True for one of the launches in `every` ns on average, by chance. n: launches that this one stands for. */
bool gs_meter_by_chance(struct gs_meter *meter, uint64_t now, uint32_t n, uint64_t every);
/* The average time between two launches that chance chooses, so that a mark is recorded behind them. */
static inline double gs_meter_check_every(const struct gs_meter *meter) {
  return (double)gs_meter_every(GS_METER_PRICE * gs_meter_mark_ns(meter), GS_METER_CHECK_NS);
}
/* Whether a mark is recorded behind the launch that is made now because chance chose it. To be asked once. */
bool gs_meter_take_choice(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);
/* The queue had a launch. */
static inline void gs_meter_latest(struct gs_meter *meter, const struct gs_queue *queue, uint64_t now) {
  if (meter->latest != queue) {
    meter->latest = queue;
    meter->other_at = meter->latest_at;
  }
  meter->latest_at = now;
}
/* n launches were made up to now. */
void gs_meter_count(struct gs_meter *meter, uint64_t now, uint32_t n);

#endif
