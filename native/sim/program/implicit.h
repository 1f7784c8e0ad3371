/* What a context takes of its device without being asked by an allocation. */
#ifndef SIM_IMPLICIT_H
#define SIM_IMPLICIT_H

#include "sim/model/context.h"

/* A program comes into a context, or leaves it. sim_lock held. */
CUresult sim_code_load(struct sim_ctx *ctx, uint64_t bytes);
void sim_code_unload(struct sim_ctx *ctx, uint64_t bytes);
/* A kernel with that much local memory per thread is about to run: the device is set up for it, for good. sim_lock
 * held. */
CUresult sim_stack_need(struct sim_ctx *ctx, uint64_t bytes_per_thread);
CUresult sim_limit_set(struct sim_ctx *ctx, CUlimit limit, size_t value);
/* sim_lock held */
void sim_implicit_begin(struct sim_ctx *ctx);
void sim_implicit_end(struct sim_ctx *ctx);

#endif
