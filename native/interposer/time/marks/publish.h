/* Reports to the arbiter and to the gate: the slot's words of a device. */
#ifndef GPUSHARE_TIME_PUBLISH_H
#define GPUSHARE_TIME_PUBLISH_H

#include "interposer/time/timing.h"

/* Writes the slot's device words. For an idle device the published end stays at the time when it was first seen idle: a
 * program that asks whether its work is done does not use the device. Work that is not proven done ends in the future,
 * whatever was estimated. Returns true if all work is done, much earlier than published before. Called with the
 * device's lock held. */
bool gs_publish(struct gs_time_device *device, uint64_t now);

/* Nanoseconds until the work in flight is expected to be done; 0: it is done. Called with the device's lock held. */
uint64_t gs_rest(struct gs_time_device *device, uint64_t now);

/* Rings the bell if other grants wait for the device. To be called after gs_publish returned true. */
void gs_tell_sooner(const struct gs_time_device *device);

#endif
