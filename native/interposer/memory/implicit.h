/* What the driver takes by itself, for the files that know when: implicit.c, graph_kernels.c. */
#ifndef GPUSHARE_IMPLICIT_H
#define GPUSHARE_IMPLICIT_H

#include "interposer/process/process.h"

/* A kernel, graph or limit that may make the driver take memory by itself. */
struct gs_first {
  uint64_t kernel; /* its hash, to be remembered once it ran; 0: not to be */
  CUcontext context;
  uint32_t what;   /* enum gs_implicit */
  uint64_t bytes;  /* of what in the context, when this is done */
  bool grows;      /* announced in the books */
  bool collective; /* counted, on the device of this ordinal, into this stream */
  int32_t ordinal;
  CUstream stream;
};

/* The calling thread's, of a green one the primary; NULL: none. */
CUcontext gs_owner_current(void);
/* The stream's, likewise. */
CUcontext gs_stream_owner(CUstream stream);
/* What the kernel makes the driver take in context besides what it has there; its library is then in it. */
CUresult gs_kernel_need(CUfunction function, CUcontext context, int *ordinal, uint64_t *stack);
/* Reserves local memory of so many bytes per thread, until the call that needs it is over: gs_implicit_end. */
CUresult gs_stack_begin(struct gs_first *first, CUcontext context, int ordinal, uint64_t stack);
void gs_implicit_end(const struct gs_first *first, bool taken);

/* Around a launch of the kernel: what it needs is reserved the first time, a collective is counted each time. first is
 * set whatever look gives; an error means that it does not fit, and there is nothing to end. */
CUresult gs_kernel_look(struct gs_first *first, CUfunction function, CUstream stream);
void gs_kernel_looked(const struct gs_first *first, CUresult result);

/* ---- graph_kernels.c ---- */

/* What a kernel node launches, and the context that the node names. */
CUresult gs_graph_node_kernel(CUgraphNode node, CUfunction *function, CUcontext *context);
/* What the kernels of a graph need, until gs_implicit_end. first is set whatever it gives. */
CUresult gs_graph_kernels_begin(struct gs_first *first, CUgraph graph);

#endif
