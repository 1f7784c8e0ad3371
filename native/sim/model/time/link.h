/* Copies on the link between a device and the host. Requires sim_lock. */
#ifndef SIM_LINK_H
#define SIM_LINK_H

#include "sim/model/model.h"

/* The copy begins at t. A process has one copy at a time in each direction. */
void sim_link_begin(struct sim_item *item, uint64_t t);
/* When the copy ends unless others begin before. */
uint64_t sim_link_end(const struct sim_item *item);
void sim_link_done(const struct sim_item *item); /* counts its bytes */

#endif
