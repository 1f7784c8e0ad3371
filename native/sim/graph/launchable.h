/* Executable graphs that the device can launch. Requires sim_lock unless noted otherwise. */
#ifndef SIM_LAUNCHABLE_H
#define SIM_LAUNCHABLE_H

#include "sim/graph/graph.h"

/* True if all its nodes are of types that the device can launch, and of one context. With or without sim_lock. */
bool sim_graph_on_device(const struct sim_graph *graph);
void sim_launchable_add(struct sim_graph_exec *exec);              /* takes the lock itself */
void sim_launchable_remove(struct sim_graph_exec *exec);           /* no effect if it is not in the list */
const struct sim_graph_exec *sim_launchable_find(uint64_t handle); /* NULL: not in the list */

#endif
