/* Internal to the meter: what is known of a segment whose mark was done. */
#ifndef GPUSHARE_METER_SHOWN_H
#define GPUSHARE_METER_SHOWN_H

#include "interposer/meter/lengths.h"

struct gs_shown {
  const struct gs_segment *segment;
  uint64_t begin, done; /* it took place in between */
  uint64_t recorded;    /* from here on its stream was seen at work, if it was not done before */
  double charged;       /* what of it is charged already */
  double lag;           /* how long after `recorded` it was done, */
  double expected;      /* how long after that it was expected to be, other streams' work included, */
  double rest;          /* and how much of that is its own */
  double total;         /* its estimate, */
  double likely;        /* and, where no work waited for its mark, that of launches which have room in this time */
  bool whole;           /* its stream was seen at work from `begin` on */
  bool longest;         /* and it took no longer than that: its mark was recorded after its one launch was done */
  bool behind;        /* other streams of the process had work when its mark was recorded, which may have come first */
  bool came;          /* its stream had no work before it */
  bool alone;         /* no others were on the device */
  uint32_t residents; /* number of the grant's processes on the device */
};

/* Charges the segment, and learns from it. */
void gs_charge_segment(struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown);

/* What the process had of the time that was seen. The longer others were there, the better is known which part of it that
 * was; so a segment that followed the one before without a break is looked at together with it. */
struct gs_had gs_run_had(const struct gs_meter *meter, struct gs_queue *queue, const struct gs_shown *shown,
                         uint64_t from, double estimate);

#endif
