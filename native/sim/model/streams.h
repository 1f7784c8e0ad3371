/* The streams of contexts: made, ended. All with sim_lock held but sim_stream_known. */
#ifndef SIM_STREAMS_H
#define SIM_STREAMS_H

#include "sim/model/model.h"

struct sim_stream *sim_stream_new(struct sim_ctx *ctx, unsigned flags, int priority); /* NULL: no memory */
/* Unknown from now on; freed once its work is done. Ends its capture. */
void sim_stream_destroy(struct sim_stream *stream);
bool sim_stream_known(const struct sim_stream *stream); /* a live handle */
/* All streams of a context, which are empty. */
void sim_streams_free(struct sim_ctx *ctx);
void sim_streams_sweep(void); /* frees destroyed ones that are empty */

#endif
