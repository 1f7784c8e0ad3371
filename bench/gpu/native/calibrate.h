/* From times to amounts of work: how much of a kernel's amount is a nanosecond of the device. */
#ifndef BENCH_CALIBRATE_H
#define BENCH_CALIBRATE_H

#include <stdbool.h>
#include <stdint.h>

struct calibration {
  double rate;      /* iterations per nanosecond of device time */
  double launch_ns; /* device time of each launch on top of its iterations, in a row of launches */
};

/* Nanoseconds of device time that so many launches of `amount` iterations each take, one right behind the other. */
typedef double time_of_launches(void *of, unsigned launches, uint64_t amount);

/* False when the times do not grow with the work. */
bool calibrate(time_of_launches *time, void *of, struct calibration *out);

/* The iterations with which a launch in a row of launches takes that long, and at least one. */
uint64_t calibrated_amount(const struct calibration *calibration, uint64_t ns);

#endif
