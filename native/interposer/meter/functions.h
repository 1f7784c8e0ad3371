/* Internal to the meter: the functions of a segment, and what the meter's source files share. */
#ifndef GPUSHARE_METER_FUNCTIONS_H
#define GPUSHARE_METER_FUNCTIONS_H

#include "interposer/meter/meter.h"

static inline double minimum(double a, double b) { return a < b ? a : b; }
static inline double maximum(double a, double b) { return a > b ? a : b; }

/* Whether the estimates of all functions in the segment are trusted. */
bool gs_segment_trusted(const struct gs_segment *segment);
/* Whether all functions in the segment were observed while no others were on the device. */
bool gs_segment_known_alone(const struct gs_segment *segment);

/* Whether brackets have shown how long the function takes, or at least an upper bound. */
static inline bool gs_function_shown(const struct gs_function *function) {
  return function->kind == GS_SAMPLE_EXACT || function->kind == GS_SAMPLE_COMPANY;
}

/* Whether enough of its launches were bracketed, with or without success. */
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
/* Notes that the segment's launches were charged `charged` ns by a guess. */
void gs_segment_guessed(const struct gs_segment *segment, double charged);
/* The segment's functions may take much longer than before: has their next launches observed again. */
void gs_segment_distrust(const struct gs_segment *segment);

/* Interval between measurements: the longer of what their cost allows and what is frequent enough. */
static inline uint64_t gs_meter_every(double allowed, uint64_t enough) {
  return allowed > (double)enough ? (uint64_t)allowed : enough;
}
/* Host time that recording and reading a mark takes. */
static inline double gs_meter_mark_ns(const struct gs_meter *meter) { return meter->record_ns + meter->read_ns; }
/* Whether a launch onto an empty queue that is estimated to take `estimate` ns gets a mark of its own. */
static inline bool gs_meter_own_mark(const struct gs_meter *meter, double estimate) {
  return estimate >= GS_METER_ALONE_MOST_NS ||
         estimate >= (double)gs_meter_every(GS_METER_MARK_PRICE * gs_meter_mark_ns(meter), GS_METER_ALONE_NS);
}
/* Notes that a bracket cost the program `ns`. */
void gs_meter_bracketed(struct gs_meter *meter, double ns);
/* Time between two bracketed launches of a stream, on average. */
static inline uint64_t gs_queue_sample_every(const struct gs_meter *meter, const struct gs_queue *queue) {
  return gs_meter_every(GS_METER_BRACKET_PRICE * meter->bracket_ns, (uint64_t)GS_METER_SAMPLE_NS << queue->agreed);
}
/* The part of the time that work took which shows its own length: the grant's other processes may have had their time
 * slices first. */
static inline double gs_own_time(double took, uint32_t residents) {
  if (residents <= 1)
    return took;
  return took > GS_METER_UNSLICED_NS ? took - GS_METER_UNSLICED_NS : 0;
}
/* Whether work took so much longer than expected that the estimate is wrong. */
static inline bool gs_is_late(double took, double expected) { return took > 2 * expected + GS_METER_LATE_NS; }
/* Whether the device worked for much longer than expected after the mark was recorded, even if other streams ran first.
 * total: estimated time of its launches. lag: time since it was recorded. */
bool gs_mark_late(const struct gs_mark *mark, double total, double lag);
/* Removes work of the queue from what is in flight. */
void gs_queue_landed(struct gs_meter *meter, struct gs_queue *queue, double estimate, uint32_t unobserved);
/* Charges by estimate, within a span that bounds the charge. Returns the charge. */
double gs_queue_fit(struct gs_queue *queue, const struct gs_segment *segment, double want, double span);
/* Decides whether a launch is bracketed. Returns enum gs_plan bits. */
uint32_t gs_meter_plan_sample(struct gs_meter *meter, struct gs_queue *queue, struct gs_function *function,
                              uint64_t now);
/* True at random, for one launch per `every` ns on average. n: number of launches that this one represents. */
bool gs_meter_by_chance(struct gs_meter *meter, uint64_t now, uint32_t n, uint64_t every);
/* Average time in ns between two randomly chosen launches, each of which gets a mark behind it. */
static inline double gs_meter_check_every(const struct gs_meter *meter) {
  return (double)gs_meter_every(GS_METER_PRICE * gs_meter_mark_ns(meter), GS_METER_CHECK_NS);
}
/* Whether the launch that is made now was chosen at random to get a mark behind it. To be called once per launch. */
bool gs_meter_take_choice(struct gs_meter *meter, struct gs_queue *queue, uint64_t now);
/* Notes a launch into the queue. */
static inline void gs_meter_latest(struct gs_meter *meter, const struct gs_queue *queue, uint64_t now) {
  if (meter->latest != queue) {
    meter->latest = queue;
    meter->other_at = meter->latest_at;
  }
  meter->latest_at = now;
}
/* Notes n launches, made up to `now`. */
void gs_meter_count(struct gs_meter *meter, uint64_t now, uint32_t n);

#endif
