/* What the kinds of contexts share. */
#ifndef SIM_CONTEXTS_H
#define SIM_CONTEXTS_H

#include "sim/model/context.h"

bool sim_ctx_flags_valid(unsigned flags);
/* Gives a context its device memory, lane and default stream. sim_lock held. */
CUresult sim_ctx_raise(struct sim_ctx *ctx, unsigned flags);
/* Ends a context whose work is done. Called unlocked. */
void sim_ctx_fell(struct sim_ctx *ctx);

/* A context with streams of its own and the memory of the device's primary context, which it keeps alive. */
CUresult sim_ctx_green_new(CUdevice device, struct sim_ctx **ctx);
CUresult sim_ctx_green_end(struct sim_ctx *ctx);

#endif
