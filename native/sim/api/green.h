/* Green contexts, as contexts and streams ask for them. */
#ifndef SIM_GREEN_H
#define SIM_GREEN_H

#include "sim/model/context.h"

CUgreenCtx sim_green_of(const struct sim_ctx *ctx); /* green.c: NULL for an ordinary context */
void sim_green_gone(const struct sim_ctx *ctx);     /* green.c: its primary context was reset; sim_lock held */

#endif
