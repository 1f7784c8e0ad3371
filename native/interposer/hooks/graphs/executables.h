/* What launches of executable graphs mean to the devices. */
#ifndef GPUSHARE_GRAPH_EXECUTABLES_H
#define GPUSHARE_GRAPH_EXECUTABLES_H

#include "interposer/process/process.h"

/* What a launch of a graph means to each device. */
struct gs_graph_need {
  uint32_t devices; /* one bit per ordinal; the other words count where it is set */
  uint32_t growing; /* where a growth was begun */
  bool elsewhere;   /* it allocates on .. */
  CUdevice where;   /* .. this device, which is not of the grant */
  uint64_t bytes[GS_MAX_DEVICES];
  uint64_t reserved[GS_MAX_DEVICES];    /* the growth begun */
  uint32_t collectives[GS_MAX_DEVICES]; /* in it */
};

/* What a launch of the graph would mean; false: no memory to look. */
bool gs_graph_look(CUgraph graph, struct gs_graph_need *need);
/* Adds what is a collective among kernel nodes. */
void gs_graph_collective(CUgraphNode node, struct gs_graph_need *need);

/* An executable graph was made; its need is remembered. */
void gs_graph_remember(CUgraphExec graph, const struct gs_graph_need *need);
void gs_graph_find(CUgraphExec graph, struct gs_graph_need *need);
void gs_graph_forget(CUgraphExec graph);
/* It has more, or fewer, collectives in it than before. */
void gs_graph_recount(CUgraphExec graph, int ordinal, int64_t more);
/* Whether any executable graph needs something: nearly everywhere none does. */
static inline bool gs_graphs_known(void) { return __atomic_load_n(&gs_process->graphs, __ATOMIC_ACQUIRE) > 0; }

#endif
