/* What launches of executable graphs need on each device. */
#ifndef GPUSHARE_GRAPH_EXECUTABLES_H
#define GPUSHARE_GRAPH_EXECUTABLES_H

#include "interposer/memory/books/life.h"
#include "interposer/process/process.h"

/* What a launch of a graph needs on each device. */
struct gs_graph_need {
  uint32_t devices; /* one bit per ordinal; the arrays below are valid where it is set */
  uint32_t growing; /* bits of the devices on which a growth was begun */
  bool elsewhere;   /* the graph allocates on `where` */
  CUdevice where;   /* a device that is not part of the grant */
  uint64_t bytes[GS_MAX_DEVICES];
  uint64_t reserved[GS_MAX_DEVICES];    /* the size of the growth begun */
  uint32_t collectives[GS_MAX_DEVICES]; /* number in the graph */
};

/* Finds out what a launch of the graph would need; false: out of memory. */
bool gs_graph_look(CUgraph graph, struct gs_graph_need *need);
/* Adds a kernel node to the count if it is a collective. */
void gs_graph_collective(CUgraphNode node, struct gs_graph_need *need);

/* Around the call that makes an executable graph. graph: NULL if it made none. */
void gs_graph_announce(struct gs_maker *maker);
void gs_graph_remember(const struct gs_maker *maker, CUgraphExec graph, const struct gs_graph_need *need);
/* Finds the need of an executable graph. */
void gs_graph_find(CUgraphExec graph, struct gs_graph_need *need);
/* A call has destroyed the graph: removes what was in the books before that call (its number). A graph that needs
 * nothing is not in the books, so records added since may be of another graph that lives; the one destroyed held no
 * memory then. */
void gs_graph_gone(CUgraphExec graph, uint64_t call);
/* Adds `more`, which may be negative, to the graph's number of collectives on a device. */
void gs_graph_recount(CUgraphExec graph, int ordinal, int64_t more);
/* Whether any executable graph needs something; in most processes none does. */
static inline bool gs_graphs_known(void) { return __atomic_load_n(&gs_process->graphs, __ATOMIC_ACQUIRE) > 0; }

#endif
