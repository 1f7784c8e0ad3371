/* What the driver takes by itself, for the files that know when: implicit.c, graph_kernels.c. */
#ifndef GPUSHARE_IMPLICIT_H
#define GPUSHARE_IMPLICIT_H

#include "interposer/hooks/around.h"

/* The calling thread's, of a green one the primary; NULL: none. */
CUcontext gs_owner_current(void);
/* The stream's, likewise. */
CUcontext gs_stream_owner(CUstream stream);
/* What the kernel makes the driver take in context besides what it has there; its library is then in it. */
CUresult gs_kernel_need(CUfunction function, CUcontext context, int *ordinal, uint64_t *stack);
/* Reserves local memory of so many bytes per thread, until the call that needs it is over: gs_implicit_end. */
CUresult gs_stack_begin(struct gs_first *first, CUcontext context, int ordinal, uint64_t stack);
void gs_implicit_end(const struct gs_first *first, bool taken);

#endif
