/* Memory that the driver allocates implicitly in a context: local memory of kernels, buffers, code. */
#ifndef GPUSHARE_MEMORY_IMPLICIT_H
#define GPUSHARE_MEMORY_IMPLICIT_H

#include "interposer/process/process.h"

/* The first five have the values of CUlimit. */
enum gs_implicit {
  GS_IMPLICIT_STACK = 0,
  GS_IMPLICIT_FIFO = 1,
  GS_IMPLICIT_HEAP = 2,
  GS_IMPLICIT_SYNC_DEPTH = 3,
  GS_IMPLICIT_LAUNCHES = 4,
  GS_IMPLICIT_CODE = 5
};

enum {
  GS_STACK_MAX = 524288, /* local memory of one thread, on every device */
  GS_SYNC_DEPTH_MAX = 24 /* of the device runtime */
};

/* What a call in progress may make the driver allocate. */
struct gs_growing {
  CUcontext context;
  uint32_t what;  /* enum gs_implicit */
  uint64_t bytes; /* of `what` in the context after the call */
  bool grows;     /* recorded in the books; false: there is nothing to end */
};

/* Reserves what the driver may allocate in the current context for a new value of a limit (GS_IMPLICIT_STACK to
 * LAUNCHES), until the call that sets it has returned; then call gs_implicit_end. */
CUresult gs_implicit_begin(struct gs_growing *growing, CUcontext context, int ordinal, uint32_t what, uint64_t value);
/* The same for `stack` bytes of local memory per thread, in any context. */
CUresult gs_stack_begin(struct gs_growing *growing, CUcontext context, int ordinal, uint64_t stack);
/* taken: the driver's call succeeded. */
void gs_implicit_end(const struct gs_growing *growing, bool taken);

/* Reserves, and gives back, memory for the code of programs in a context. */
CUresult gs_code_take(CUcontext context, int ordinal, uint64_t bytes);
void gs_code_give(CUcontext context, uint64_t bytes);

#endif
