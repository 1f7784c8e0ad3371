/* Internal to the meter. */
#ifndef GPUSHARE_METER_CHARGED_H
#define GPUSHARE_METER_CHARGED_H

#include <stdint.h>

/* Charges `density` ns of each ns from `from` until `to`, host time, as far as no process of the grant was charged for
 * it; returns how much that is. charged: gs_usage's words of a device. part: what this process is charged of time that
 * is longer ago than the words say. */
double gs_charged_add(uint64_t *charged, uint64_t from, uint64_t to, double density, double part);

#endif
