/* Shared by primary, ordinary and green contexts. */
#ifndef SIM_CONTEXTS_H
#define SIM_CONTEXTS_H

#include "sim/model/context.h"

bool sim_ctx_flags_valid(unsigned flags);
/* Allocates a context's device memory, lane and default stream. Requires sim_lock. */
CUresult sim_ctx_raise(struct sim_ctx *ctx, unsigned flags);
uint64_t sim_ctx_cost(const struct sim_ctx *ctx); /* device memory of an empty context, in bytes */
/* True for exactly one of the threads that want to end the context with this id. */
bool sim_ctx_claim_end(struct sim_ctx *ctx, uint64_t id);
/* Destroys a context whose work is done. Call without sim_lock. */
void sim_ctx_fell(struct sim_ctx *ctx);

/* A context with its own streams that uses the memory of the device's primary context and keeps that context alive. */
CUresult sim_ctx_green_new(CUdevice device, struct sim_ctx **ctx);
CUresult sim_ctx_green_end(struct sim_ctx *ctx);

#endif
