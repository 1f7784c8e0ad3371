/* Graphs. Internal to graph*.c and capture.c; requires sim_lock unless noted otherwise. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "sim/memory/memory.h"
#include "sim/model/attributes.h"
#include "sim/model/capture.h"
#include "sim/model/handle.h"

/* The address of an allocation node: shared by the graph, its clones and its executables. */
struct sim_graph_memory {
  unsigned refs;
  CUdeviceptr address;
};

struct sim_graph_node {
  uint32_t magic;
  int type; /* CUgraphNodeType */
  bool enabled;
  unsigned visit; /* scratch for graph walks; 0 otherwise */
  struct sim_graph *graph;
  struct sim_graph_node *next;   /* in the graph, in order of addition */
  struct sim_graph_node *origin; /* in a clone: the node it was cloned from */
  struct sim_graph_node **deps;
  unsigned ndeps;
  struct sim_ctx *ctx; /* the context whose device does the work */
  struct sim_op op;    /* payload and params point to copies owned by this node */
  void *arguments;     /* kernel nodes: kernelParams and the values they point to, in one block */
  struct sim_graph *child;
  struct sim_bodies *bodies; /* of a conditional node */
  CUevent event;
  struct sim_graph_memory *memory;
  struct sim_attributes *attributes; /* of a kernel node; NULL: none has been set */
};

struct sim_user_object {
  uint32_t magic;
  unsigned refs;
  void *data;
  CUhostFn destroy;
};

struct sim_owned {
  struct sim_user_object *object;
  unsigned count;
  struct sim_owned *next;
};

struct sim_graph {
  uint32_t magic;
  bool internal; /* belongs to a child node or an executable: the program cannot destroy it */
  bool body;     /* of a conditional node */
  uint64_t id;
  unsigned
      executables; /* made from it and not destroyed; counted only for graphs with conditional nodes: at most one */
  struct sim_graph_node *nodes;
  unsigned nnodes;
  struct sim_owned *owned;
  struct sim_condition_handle **conditions; /* handles created for it */
  unsigned nconditions;
};

extern struct sim_kind sim_graph_kind, sim_node_kind, sim_object_kind;
/* Drops references; with the last one it calls the program's destructor, without sim_lock. */
void sim_object_release(struct sim_user_object *object, unsigned count);

/* Handle lookup; may be called with or without sim_lock. */
CUresult sim_graph_get(CUgraph handle, struct sim_graph **graph);
CUresult sim_node_get(CUgraphNode handle, struct sim_graph_node **node);

/* New graphs and clones are NULL if out of memory. Freeing a graph also frees its nodes and child graphs. */
struct sim_graph *sim_graph_new(void);
void sim_graph_free(struct sim_graph *graph);
struct sim_graph *sim_graph_clone(const struct sim_graph *graph);
/* The node in copy that corresponds to node in the original graph; NULL: none. */
struct sim_graph_node *sim_node_clone(const struct sim_graph *copy, const struct sim_graph_node *node);
/* A node with its own copies of everything op points to; NULL: out of memory. The caller has checked deps. */
struct sim_graph_node *sim_node_new(struct sim_graph *graph, int type, const struct sim_op *op,
                                    struct sim_graph_node *const *deps, unsigned ndeps);
/* Replaces the op of a node by one of the same type. */
bool sim_node_set_op(struct sim_graph_node *node, const struct sim_op *op);
void sim_node_free(struct sim_graph_node *node);
/* All nodes in topological order; the caller frees the array. NULL: a cycle, or out of memory. */
struct sim_graph_node **sim_graph_order(const struct sim_graph *graph);

/* Converts the API's parameters for a node of any type to an op. Call without sim_lock. */
struct sim_node_spec {
  struct sim_op op;
  union sim_op_storage storage;
  struct sim_ctx *ctx;
};
CUresult sim_spec_of(const CUgraphNodeParams *params, struct sim_node_spec *spec);

struct sim_graph_exec {
  uint32_t magic;
  struct sim_graph *graph; /* a clone: node->origin refers to the program's nodes */
  uint64_t flags;
  struct sim_graph *source; /* counts this executable in `executables`, if its id is still source_id */
  uint64_t source_id;
  bool uploaded;
  struct sim_graph_exec *next; /* in the list of those that the device can launch */
  struct sim_mark *last;       /* end of the latest launch: launches of one executable run one after another */
};
CUresult sim_exec_get(CUgraphExec handle, struct sim_graph_exec **exec); /* with or without sim_lock */

/* graph_nodes.c; these take sim_lock themselves */
CUresult sim_graph_add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t ndeps,
                       CUgraphNodeParams *params);
/* The parameters of a node of this type, as given at its creation. INVALID_VALUE if the node has another type. */
CUresult sim_node_read_params(CUgraphNode handle, int type, void *out, size_t bytes);
CUresult sim_node_set_params(CUgraphNode handle, const CUgraphNodeParams *params);
/* executable: the node belongs to an executable graph, where less may change */
CUresult sim_node_update(struct sim_graph_node *node, const CUgraphNodeParams *params, bool executable);

#endif
