/* CUDA_VISIBLE_DEVICES in a share.
 *
 * In a share devices are numbered from 0, in the order of the grant. The driver would number the devices of the node, or
 * those whose nodes it may open, in an order of its own. So while it initialises itself, which is when it reads the
 * variable, it finds there the names of the devices that the program asks for. Before and after that, the program and
 * its children find what they were given or have set themselves. */
#ifndef GPUSHARE_VISIBLE_H
#define GPUSHARE_VISIBLE_H

#include <stdbool.h>

#include "page/gs_device_name.h"

/* Bytes for as many names as there are devices, one of them twice. */
enum { GS_VISIBLE_BYTES = (GS_MAX_DEVICES + 1) * sizeof(struct gs_device_name) };

/* Writes to `words`, of GS_VISIBLE_BYTES, what the driver is to read where the program asks for `asked`; NULL: for
 * nothing in particular, so it gets all devices of the grant. An entry that is no device of the grant ends the list, as
 * the driver ends it (CUDA Programming Guide, "CUDA Environment Variables"); one that is named twice is written twice.
 * Returns how many devices the driver will show: none where one is named twice. */
unsigned gs_visible_words(const struct gs_limits *limits, const char *asked, char *words);

/* To be called by a joined process before and, if it returned true, after the driver's cuInit; threads may do so at the
 * same time. False: the driver has been initialised before, and does not read the variable again. */
bool gs_visible_begin(void);
void gs_visible_end(bool initialised);

#endif
