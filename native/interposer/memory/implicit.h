/* What the driver takes of a context's memory by itself: local memory of kernels, buffers, code. */
#ifndef GPUSHARE_MEMORY_IMPLICIT_H
#define GPUSHARE_MEMORY_IMPLICIT_H

#include "interposer/process/process.h"

enum gs_implicit { GS_IMPLICIT_STACK = 0, GS_IMPLICIT_FIFO = 1, GS_IMPLICIT_HEAP = 2, GS_IMPLICIT_CODE = 3 };

enum { GS_STACK_MAX = 524288 /* local memory of one thread, on every device */ };

/* What a call under way may make the driver take. */
struct gs_growing {
  CUcontext context;
  uint32_t what;  /* enum gs_implicit */
  uint64_t bytes; /* of what in the context, when the call is done */
  bool grows;     /* announced in the books; false: there is nothing to end */
};

/* Reserves what a new value of a limit (GS_IMPLICIT_STACK, FIFO or HEAP) may make the driver take of the current
 * context, until the call that sets it is over: gs_implicit_end. */
CUresult gs_implicit_begin(struct gs_growing *growing, CUcontext context, int ordinal, uint32_t what, uint64_t value);
/* The same for local memory of so many bytes per thread, in any context. */
CUresult gs_stack_begin(struct gs_growing *growing, CUcontext context, int ordinal, uint64_t stack);
/* taken: the driver did what was asked. */
void gs_implicit_end(const struct gs_growing *growing, bool taken);

/* More (or less) of the context's memory is its programs' code: reserved, or given back. */
CUresult gs_code_take(CUcontext context, int ordinal, uint64_t bytes);
void gs_code_give(CUcontext context, uint64_t bytes);

#endif
