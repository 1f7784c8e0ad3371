/* The interposer's own driver calls on a thread of the program, or on the gate thread. Between the two functions the
 * thread cannot be cancelled, because the books are inconsistent, and its capture mode is relaxed, so that no capture
 * of the program is invalidated. Afterwards errno, the capture mode and the current context are as before. */
#ifndef GPUSHARE_TIME_INSIDE_H
#define GPUSHARE_TIME_INSIDE_H

#include "interposer/time/timing.h"

struct gs_inside {
  int saved, cancel, mode;
  bool pushed;
};

/* Makes the context current, unless it is NULL: events are created in the current context, and the handles of default
 * streams mean its streams. False: the driver refuses. gs_inside_end has to be called even then. */
bool gs_inside_begin(struct gs_inside *inside, const struct gs_context *context);
void gs_inside_end(const struct gs_inside *inside);

#endif
