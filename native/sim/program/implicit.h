/* Device memory that a context takes without an explicit allocation. */
#ifndef SIM_IMPLICIT_H
#define SIM_IMPLICIT_H

#include "sim/model/context.h"

/* Charges and releases the code of a program in a context. Requires sim_lock. */
CUresult sim_code_load(struct sim_ctx *ctx, uint64_t bytes);
void sim_code_unload(struct sim_ctx *ctx, uint64_t bytes);
/* Prepares the device for a kernel with this much local memory per thread. The memory is kept until the context ends.
 * Requires sim_lock. */
CUresult sim_stack_need(struct sim_ctx *ctx, uint64_t bytes_per_thread);
CUresult sim_limit_set(struct sim_ctx *ctx, CUlimit limit, size_t value);
/* Requires sim_lock. */
void sim_implicit_begin(struct sim_ctx *ctx);
void sim_implicit_end(struct sim_ctx *ctx);
uint64_t sim_implicit_bytes(const struct sim_ctx *ctx); /* charged for it */

#endif
