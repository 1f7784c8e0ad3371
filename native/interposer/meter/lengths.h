/* Internal to the meter: how long launches take, and what its files share. */
#ifndef GPUSHARE_METER_LENGTHS_H
#define GPUSHARE_METER_LENGTHS_H

#include "interposer/meter/meter.h"

static inline double minimum(double a, double b) { return a < b ? a : b; }
static inline double maximum(double a, double b) { return a > b ? a : b; }
static inline double after(uint64_t end, uint64_t begin) { return end > begin ? (double)(end - begin) : 0; }

/* ---- lengths.c ---- */

/* Whether the estimates of all functions in the segment are trusted. */
bool gs_segment_trusted(const struct gs_segment *segment);
/* Whether launches of the function often have such a length. */
bool gs_class_occurs(const struct gs_function *function, const struct gs_class *length);
/* What its launches take, of which nothing was seen but that they took no longer than `room` and were done at `done`: by
 * the mean of those of their lengths that fit, and no more than `total`, their estimate. */
double gs_segment_within(const struct gs_segment *segment, double total, double room, uint64_t done);
/* The same for one launch. */
double gs_function_within(const struct gs_function *function, double room);
/* The same as gs_segment_trusted, and observed while no others were on the device. */
bool gs_segment_known_alone(const struct gs_segment *segment);
/* Whether a launch of a known function took so much longer than the mean that it is charged as measured and is not part
 * of the mean. Only while such launches are rare. */
bool gs_function_far(struct gs_function *function, double took);
/* The only function of a segment that shows how long its launches take; NULL: there is none. */
struct gs_function *gs_segment_function(const struct gs_segment *segment);
/* No work of the segment waited for its mark, so its launches took no longer than `room` ns in all. Forgets the first
 * means of functions that several such segments refute. */
void gs_segment_refutes(const struct gs_segment *segment, double room);
/* Work of the segment waited for its mark, so its means may be right. */
void gs_segment_supports(const struct gs_segment *segment);
/* One launch took `took` ns, and was chosen out of `weight`. exact: it was measured, and not together with others. */
void gs_function_learn(struct gs_function *function, double took, double weight, bool exact);
/* The burst of what is launched now. */
uint64_t gs_meter_burst(struct gs_meter *meter, uint64_t now);
/* One launch took `took` ns, and was chosen out of `weight`: notes that there are such lengths. */
void gs_function_classify(struct gs_function *function, double took, double weight);
/* One launch in this burst took `took` ns; or several, on average. */
void gs_function_seen(struct gs_function *function, double took, uint64_t burst);
/* The whole segment took `took` ns; shared: others had a part of that. */
void gs_segment_learn(const struct gs_segment *segment, double took, bool shared);
/* A launch of the function was measured by itself: the segment's estimate is without it from now on. */
void gs_segment_without(struct gs_segment *segment, const struct gs_function *function);

/* ---- purse.c ---- */

/* Counts this many launches, made up to now; its part of a pause is saved. */
void gs_purse_earn(struct gs_meter *meter, uint64_t now, uint32_t launches);
/* The chance with which the next launch is chosen. */
double gs_purse_chance(const struct gs_meter *meter);
/* Whether the launch that is made now is chosen to be measured; out of how many, if so. To be called once a launch. */
bool gs_purse_chosen(struct gs_meter *meter, struct gs_queue *queue, double *weight);
/* Whether a launch that was just chosen would have been with an empty purse. */
bool gs_purse_usual(struct gs_meter *meter);
/* Measuring has cost, or has uncovered, this much. */
void gs_purse_pay(struct gs_meter *meter, double ns);
void gs_purse_found(struct gs_meter *meter, double ns);
/* Notes that a bracket cost the program `ns`. */
void gs_meter_bracketed(struct gs_meter *meter, double ns);
/* Host time that recording and reading a mark takes. */
static inline double gs_meter_mark_ns(const struct gs_meter *meter) { return meter->record_ns + meter->read_ns; }

/* ---- shown.c ---- */

/* When the work launched until `at` is done at the latest, as believed: nobody knows when the repeated launches since the
 * last planned one were made, perhaps just before. */
static inline uint64_t gs_queue_latest(const struct gs_queue *queue, uint64_t at) {
  uint64_t latest = queue->latest > at ? queue->latest : at;
  latest += (uint64_t)queue->repeated_ns;
  return latest > queue->end ? latest : queue->end;
}
/* Whether work took so much longer than expected that the estimate is wrong. */
static inline bool gs_is_late(double took, double expected) { return took > 2 * expected + GS_METER_LATE_NS; }
/* Returns the charge by estimate for work that had `room` ns at most, and at least `least`; carries the rest over. */
double gs_meter_fit(struct gs_meter *meter, const struct gs_segment *segment, double estimate, double least,
                    double room);
/* A launch that stands for others took `missed` ns longer than was known: charges what those others took, where nobody
 * saw their end. to: when it was made; 0: not known. */
void gs_charge_unseen(struct gs_meter *meter, uint64_t to, double missed);

/* Something was late by `late` ns, `worked` ns of which the device worked for it. */
static inline void gs_meter_late(struct gs_meter *meter, double late, double worked) {
  enum { REMEMBERED_NS = 500000000 };
  meter->late += late;
  meter->worked += worked;
  if (meter->late > REMEMBERED_NS) {
    meter->late /= 2;
    meter->worked /= 2;
  }
}

/* ---- unsettled.c ---- */

/* Charges the launches as soon as it is known how long the others were there. */
void gs_meter_settle_later(struct gs_meter *meter, struct gs_unsettled later);
/* Charges what is known by now, or old. */
void gs_meter_settle(struct gs_meter *meter, uint64_t now);

/* ---- siblings.c ---- */

/* A segment that took longer than expected while other processes of the grant had work, or shows how long its launches
 * are if they had none. What of its time is charged to nobody in the end is charged to this process. */
void gs_siblings_note(struct gs_meter *meter, struct gs_among one);
/* Work that was there for `had` ns: for how much of that it had the device if each of the others had one time slice. */
double gs_siblings_left(double had, uint32_t residents);

/* ---- runs.c ---- */

/* The mean length of n launches between two instants in which others were on the device: one that launches often have,
 * if that is about as long as what this process had; else that of all. */
double gs_function_about(const struct gs_meter *meter, const struct gs_function *function, uint32_t n, uint64_t from,
                         uint64_t to);

/* ---- inflight.c ---- */

/* Removes work of the queue from what is in flight. */
void gs_queue_landed(struct gs_meter *meter, struct gs_queue *queue, double estimate, uint32_t unobserved);

#endif
