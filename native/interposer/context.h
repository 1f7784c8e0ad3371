/* Contexts, as context.c and green.c share them. */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include "interposer.h"

/* Reserves one context's cost; 0 bytes and GS_NO_DEVICE where the driver is to say that there is no such device. */
CUresult gs_context_reserve(CUdevice device, int *ordinal, uint64_t *bytes);

/* With the device's context_lock: its primary context was made, by a call of which it is a consequence. */
void gs_primary_made(int ordinal, CUcontext primary);
/* With the same lock: some call may have ended the primary context. If so, it goes out of the books with all it held. */
void gs_primary_settle(CUdevice device, int ordinal);

/* The primary context is gone, and its green contexts with it. */
void gs_greens_gone(CUcontext primary);

#endif
