#ifndef GPUSHARE_GRAPH_MEMORY_H
#define GPUSHARE_GRAPH_MEMORY_H

#include "interposer/hooks/graphs/executables.h"

/* To be called before a call that allocates the graph's memory: begins a growth for everything that the graph may
 * allocate. 0, or as gs_reserve_here: then no growth was begun. */
int gs_graph_memory_begin(struct gs_graph_need *need, CUstream stream);
/* The same, waiting for the grant's room. */
CUresult gs_graph_memory_await(struct gs_graph_need *need, CUstream stream);
/* To be called after that call. */
void gs_graph_memory_end(struct gs_graph_need *need);
/* The device's graph memory may have shrunk. */
void gs_graph_memory_settle(int ordinal);

#endif
