/* What kernels of graphs make the driver take. */
#ifndef GPUSHARE_GRAPH_KERNELS_H
#define GPUSHARE_GRAPH_KERNELS_H

#include "interposer/memory/implicit.h"

/* What the kernels of a graph need, until gs_implicit_end. growing is set whatever it gives. */
CUresult gs_graph_kernels_begin(struct gs_growing *growing, CUgraph graph);
/* The same for one kernel, in the current context. */
CUresult gs_graph_kernel_begin(struct gs_growing *growing, CUfunction function);

#endif
