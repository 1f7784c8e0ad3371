/* Conditional nodes: their handles, and the graphs that are their bodies. Requires sim_lock. */
#ifndef SIM_CONDITIONS_H
#define SIM_CONDITIONS_H

#include "sim/graph/graph.h"

/* Behind a CUgraphConditionalHandle, which is its number. Its graph and each node that uses it have a reference. */
struct sim_condition_handle {
  uint64_t number;
  unsigned refs;
  struct sim_ctx *ctx;
  bool used;     /* by a node; a handle can be used by one node only */
  bool assigned; /* a launch begins with the default value */
  unsigned initial, value;
  struct sim_condition_handle *next;
};

/* The bodies of a node, and the handle that selects among them. */
struct sim_bodies {
  int type; /* CUgraphConditionalNodeType */
  unsigned count;
  struct sim_condition_handle *handle;
  struct sim_graph *graph[]; /* the program sees this array */
};

/* condition_values.c. A copy of the given handle with a number of its own and one reference. */
CUresult sim_condition_new(const struct sim_condition_handle *like, struct sim_condition_handle **out);
struct sim_condition_handle *sim_condition_find(uint64_t number); /* NULL: no such handle */
void sim_condition_release(struct sim_condition_handle *handle);
/* Checks a new node's parameters and makes its bodies; call without sim_lock. */
CUresult sim_bodies_new(CUDA_CONDITIONAL_NODE_PARAMS *params, struct sim_bodies **out);
/* graph.c. Allocates room for bodies, without making them; NULL: out of memory. */
struct sim_bodies *sim_bodies_empty(int type, unsigned count, struct sim_condition_handle *handle);
void sim_bodies_free(struct sim_bodies *bodies);
struct sim_bodies *sim_bodies_clone(const struct sim_bodies *bodies); /* NULL: out of memory */
bool sim_graph_conditional(const struct sim_graph *graph);            /* it has a conditional node at any depth */
/* True if all nodes, at any depth, are of types that a body may have. */
bool sim_bodies_valid(const struct sim_graph *graph);

/* Effects of a launch on conditions. Kernels compute nothing, so their effect is known beforehand: a launch submits the
 * nodes in order, and kernels that change a condition do so when they are submitted. */
void sim_conditions_begin(const struct sim_graph *graph); /* assigns default values */
void sim_condition_change(const struct sim_op *op);       /* a kernel's effect */
uint64_t sim_condition_changes(void);                     /* number of times that a value changed */
/* The index of the body that the condition selects now; -1: none. */
int sim_bodies_selected(const struct sim_bodies *bodies);
bool sim_bodies_change(const struct sim_graph *graph); /* a kernel of this graph, at any depth, changes a condition */

#endif
