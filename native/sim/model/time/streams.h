/* Creation and destruction of streams in contexts. Requires sim_lock except for sim_stream_known. */
#ifndef SIM_STREAMS_H
#define SIM_STREAMS_H

#include "sim/model/model.h"

enum { SIM_LEAST_PRIORITY = 0, SIM_GREATEST_PRIORITY = -5 };
/* Clamps a priority to the range of the devices. */
static inline int sim_priority(int wanted) {
  int least = wanted < SIM_LEAST_PRIORITY ? wanted : SIM_LEAST_PRIORITY;
  return least > SIM_GREATEST_PRIORITY ? least : SIM_GREATEST_PRIORITY;
}

struct sim_stream *sim_stream_new(struct sim_ctx *ctx, unsigned flags, int priority); /* NULL: out of memory */
/* Invalidates the handle at once and ends its capture; the stream is freed when its work is done. */
void sim_stream_destroy(struct sim_stream *stream);
bool sim_stream_known(const struct sim_stream *stream); /* true for a live handle */
/* Frees all streams of a context; they must be empty. */
void sim_streams_free(struct sim_ctx *ctx);
void sim_streams_sweep(void); /* frees destroyed streams that are empty */

#endif
