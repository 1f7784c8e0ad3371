/* Host memory for movable memory: segments of the node's host pool, which the daemon gives to this process, mapped side by
 * side. Offsets count from the first. All functions are for the mover's thread. */
#ifndef GPUSHARE_HOST_MEMORY_H
#define GPUSHARE_HOST_MEMORY_H

#include "interposer/process/process.h"

/* Gets segments until there are `bytes` of memory. -ENOSPC: the pool, or the address space, has no room. Another negative
 * errno: the daemon does not answer, or the system refuses. What is there already stays. */
int gs_host_get(int ordinal, uint64_t bytes);
/* Pins the next segment that is not pinned yet, in the current context: copies are several times as fast. False: there is
 * none, or the driver refuses, which does no harm. */
bool gs_host_pin_next(CUcontext context);
/* The context has ended, and with it what it had pinned, and the mover's own stream and events. May be called by any thread. */
void gs_host_context_gone(CUcontext context);
/* Gives everything back to the pool. */
void gs_host_drop(int ordinal);

uint64_t gs_host_bytes(void);
void *gs_host_at(uint64_t offset);
/* How many of `bytes` from there on are in one segment: what is copied at once has to be. */
uint64_t gs_host_span(uint64_t offset, uint64_t bytes);

/* Tells the daemon that words in this process's slot have changed. Returns false if it did not hear. */
bool gs_daemon_look(void);

#endif
