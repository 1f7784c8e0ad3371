/* The attributes of core dumps that a context has. Requires sim_lock. */
#ifndef SIM_COREDUMP_H
#define SIM_COREDUMP_H

#include "sim/model/context.h"

void sim_coredump_begin(struct sim_ctx *ctx);
void sim_coredump_end(struct sim_ctx *ctx);

#endif
