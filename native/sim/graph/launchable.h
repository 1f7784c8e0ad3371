/* Executable graphs that the device can launch. Requires sim_lock unless noted otherwise. */
#ifndef SIM_LAUNCHABLE_H
#define SIM_LAUNCHABLE_H

#include "sim/graph/graph.h"

/* All its nodes are of types, and of one context, that the device can launch. With or without sim_lock. */
bool sim_graph_on_device(const struct sim_graph *graph);
void sim_launchable_add(struct sim_graph_exec *exec);              /* takes the lock itself */
void sim_launchable_remove(struct sim_graph_exec *exec);           /* if it is one */
const struct sim_graph_exec *sim_launchable_find(uint64_t handle); /* NULL: not one */

#endif
