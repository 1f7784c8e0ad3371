#ifndef GPUSHARE_GRAPH_MEMORY_H
#define GPUSHARE_GRAPH_MEMORY_H

#include "interposer/hooks/graphs/executables.h"

/* Before a call that allocates the graph's memory: turns what the graph may take into growths begun. False, and nothing
 * begun: it does not fit. */
bool gs_graph_memory_begin(struct gs_graph_need *need, CUstream stream);
/* After it. */
void gs_graph_memory_end(struct gs_graph_need *need);

#endif
