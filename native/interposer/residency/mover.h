/* The thread that moves memory: it starts when the driver is initialised, waits for the daemon's residency word, and
 * carries it out (docs/concepts/inside/memory-moves.md). */
#ifndef GPUSHARE_MOVER_H
#define GPUSHARE_MOVER_H

#include "interposer/process/process.h"

/* Starts the thread, once, if the grant lends idle memory. False: there is none, and nothing may be made movable. */
bool gs_mover_start(void);

#endif
