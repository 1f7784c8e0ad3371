/* Internal to the meter: the functions of a segment. */
#ifndef GPUSHARE_METER_FUNCTIONS_H
#define GPUSHARE_METER_FUNCTIONS_H

#include "interposer/meter/meter.h"

/* Whether the estimates of all functions in the segment are trusted. */
bool gs_segment_trusted(const struct gs_segment *segment);
/* Whether all functions in the segment were observed while no others were on the device. */
bool gs_segment_known_alone(const struct gs_segment *segment);

enum gs_observed {
  GS_OBSERVED_BACKLOGGED, /* the queue was never empty */
  GS_OBSERVED_ALONE,
  GS_OBSERVED_SHARED /* others were on the device too */
};
/* Scales the estimates of a segment's functions towards the time that it really took, in ns. */
void gs_segment_learn(const struct gs_segment *segment, double took, enum gs_observed how);
/* Its functions may take much longer than before: their next launches are observed again. */
void gs_segment_distrust(const struct gs_segment *segment);

#endif
