/* How many launches may repeat one that was booked in full, and how long a wait after them may last without being booked
 * at once; native/interposer/time/streams/repeat.h does that. */
#ifndef GPUSHARE_METER_REPEATS_H
#define GPUSHARE_METER_REPEATS_H

#include "interposer/meter/meter.h"

enum {
  GS_REPEAT_NS = 100000,         /* half of GS_DRAINED_NS, and of the time after which an idle holder loses its lease */
  GS_REPEAT_WITHIN_NS = 1000000, /* of the launch booked in full: else long ones that nobody waits for hide behind it */
  GS_REPEAT_LEAST = 4,           /* fewer repetitions save little */
  GS_REPEAT_MOST = 32,
  GS_REPEAT_SHORT_NS = 10000 /* waits for kernels shorter than this are booked with the next launch */
};

/* The number of launches of the function, one each `interval` ns, that may repeat the one just booked. room: what the
 * bound on work in flight leaves, in ns. None of them is one that is chosen to be measured. */
static inline uint32_t gs_repeats_after(struct gs_meter *meter, struct gs_queue *queue,
                                        const struct gs_function *function, double interval, double room) {
  double by_time = GS_REPEAT_NS / (interval > function->estimate ? interval : function->estimate);
  double by_room = room / 4 / function->estimate, most = by_time < by_room ? by_time : by_room;
  most = most <= 0 ? 0 : most < GS_REPEAT_MOST ? most : GS_REPEAT_MOST;
  uint32_t left = gs_meter_unchosen(meter, queue, (uint32_t)most);
  return left < GS_REPEAT_LEAST ? 0 : left;
}

/* The longest wait, in ns, that is booked with the next launch only. */
static inline double gs_repeat_short_wait(const struct gs_function *function) {
  return function->estimate + GS_METER_LATE_NS;
}

#endif
