/* Makes sure that the device does nothing for this process and that nothing comes: memory that is unmapped under a kernel
 * costs the program its life, so this is proven, not guessed. */
#ifndef GPUSHARE_QUIESCE_H
#define GPUSHARE_QUIESCE_H

#include "interposer/process/process.h"

/* Whether the residency word is still `word`: the daemon wants nothing else by now. */
bool gs_move_wanted(int ordinal, uint32_t word);

/* Waits, with the passage closed (GS_MOVING), until no thread is inside, every submission has reached the driver, and all
 * contexts on the device are done. GS_MOVED: so it is. Else why not; it gives up when the residency word is no longer
 * `word`, which the daemon changes when its patience is over. */
enum gs_move gs_quiesce(int ordinal, uint32_t word);

/* The same for GS_WATCHED, without waiting for work: whether no thread is inside and nothing is in flight now. */
bool gs_is_quiet(int ordinal);

/* Waits for all work in all contexts on the device, for as long as the residency word is `word`: NOT_READY if it has
 * changed. The caller keeps contexts from ending and captures from beginning. */
CUresult gs_await_work(int ordinal, uint32_t word);

#endif
