/* Memory that the driver allocates because of kernels in graphs. */
#ifndef GPUSHARE_GRAPH_KERNELS_H
#define GPUSHARE_GRAPH_KERNELS_H

#include "interposer/memory/implicit/implicit.h"

/* Reserves what the kernels of a graph need, until gs_implicit_end. growing is always set, also on errors. */
CUresult gs_graph_kernels_begin(struct gs_growing *growing, CUgraph graph);
/* The same for one kernel, in the current context. */
CUresult gs_graph_kernel_begin(struct gs_growing *growing, CUfunction function);

#endif
