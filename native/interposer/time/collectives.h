/* Kernels of collectives: they run until their peers on other devices run too, so ranks have to stop at the same one. */
#ifndef GPUSHARE_COLLECTIVES_H
#define GPUSHARE_COLLECTIVES_H

#include "interposer/process/process.h"

/* ---- which functions they are ---- */

/* The driver gave a function or kernel for this name (may be NULL). program: its module or library; context: the one it
 * ends with, NULL for a library's. */
void gs_collective_found(const void *function, const char *name, const void *program, CUcontext context);
/* It is another one's function, of the same program and kind. */
void gs_collective_same(const void *function, const void *kernel, const void *program);
/* A program was unloaded. */
void gs_collectives_gone(const void *program);
bool gs_collective(const void *function);
/* Whether any function of one was ever found. */
static inline bool gs_collectives_known(void) {
  return __atomic_load_n(&gs_process->collectives, __ATOMIC_ACQUIRE) > 0;
}

/* ---- submitting them ---- */

/* So many are about to be submitted to a device, which is waited for. Pair it with gs_collective_end by the same
 * thread, which counts back what the driver refused. */
void gs_collective_begin(int ordinal, uint32_t count);
void gs_collective_end(int ordinal, uint32_t count, CUresult result);
/* Where a launch into the stream runs. */
int gs_collective_device(CUstream stream);

/* ---- graph_collectives.c: those in executable graphs ---- */

/* What a launch of a graph means to each device; see graph_memory.c. */
struct gs_graph_need {
  uint32_t devices; /* one bit per ordinal; the other words count where it is set */
  uint32_t growing; /* where a growth was begun */
  bool elsewhere;   /* it allocates on .. */
  CUdevice where;   /* .. this device, which is not of the grant */
  uint64_t bytes[GS_MAX_DEVICES];
  uint64_t reserved[GS_MAX_DEVICES];    /* the growth begun */
  uint32_t collectives[GS_MAX_DEVICES]; /* in it */
};

/* Collectives of a node, or of all nodes, of an executable graph before and after a call that changes it. */
struct gs_graph_change {
  CUgraphExec graph;                                     /* NULL: nothing to be counted */
  CUgraphNode node;                                      /* NULL: all */
  bool toggles;                                          /* only whether it runs */
  bool enabled;                                          /* after the call */
  int32_t before[GS_MAX_DEVICES], after[GS_MAX_DEVICES]; /* while it is enabled */
};

/* A kernel node of a graph that is looked through. */
void gs_graph_collective(CUgraphNode node, struct gs_graph_need *need);
/* Before and after calls that change what an executable graph runs: all of it, or what one of its kernel nodes
 * launches. */
void gs_graph_change_all(struct gs_graph_change *change, CUgraphExec executable, CUgraph graph);
void gs_graph_change_kernel(struct gs_graph_change *change, CUgraphExec executable, CUgraphNode node,
                            CUfunction function);
void gs_graph_changed(const struct gs_graph_change *change, CUresult result);
/* What its nodes were changed to is forgotten. */
void gs_graph_nodes_gone(CUgraphExec graph);

/* graph_memory.c: what a launch of the graph would mean; false: no memory to look. */
bool gs_graph_look(CUgraph graph, struct gs_graph_need *need);
/* An executable graph has more, or fewer, collectives in it than before. */
void gs_graph_recount(CUgraphExec graph, int ordinal, int64_t more);
/* And what it has by now. */
void gs_graph_find(CUgraphExec graph, struct gs_graph_need *need);

#endif
