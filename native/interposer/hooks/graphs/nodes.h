/* Kernel nodes of graphs. */
#ifndef GPUSHARE_GRAPH_NODES_H
#define GPUSHARE_GRAPH_NODES_H

#include "interposer/process/process.h"

/* The kernel that the parameters name; NULL: none. */
CUfunction gs_node_kernel(const CUDA_KERNEL_NODE_PARAMS *params);
CUfunction gs_any_node_kernel(const CUgraphNodeParams *params);
/* The function that a kernel node launches, and the context that the node names. */
CUresult gs_graph_node_kernel(CUgraphNode node, CUfunction *function, CUcontext *context);
/* The device on which a kernel runs whose node names this context: an ordinal, or GS_NO_DEVICE. */
int gs_graph_kernel_device(CUfunction function, CUcontext named);

#endif
