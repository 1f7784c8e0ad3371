/* Moves the movable memory of this process to the host and back. All functions are for the mover's thread, with the passage
 * closed and the device quiet, except where it says so. */
#ifndef GPUSHARE_MOVE_H
#define GPUSHARE_MOVE_H

#include "interposer/process/process.h"

/* Gives every allocation that moves a place in host memory, and gets that memory. May be called while the program runs:
 * what it allocates meanwhile has none. GS_MOVED or GS_MOVE_NO_HOST. */
enum gs_move gs_move_prepare(int ordinal);

/* Whether a move out has anything to copy: otherwise it takes no time. */
bool gs_move_copies(void);
/* Copies to the host what is not copied, and takes it off the device, the largest first, for as long as the residency
 * word is `word`. GS_MOVED: all is hosted. Otherwise some of it may be. */
enum gs_move gs_move_out(int ordinal, uint32_t word);
/* Brings back what is hosted. GS_MOVE_NO_DEVICE: the device has no room for the rest. GS_MOVE_WORKING: a call that passed
 * while the memory was away has not returned yet, and may end some of it; nothing was done. anyhow: it is not looked for. */
enum gs_move gs_move_in(int ordinal, bool anyhow);

/* Copies ahead, while the program may run: returns false as soon as it does. */
bool gs_move_ahead(int ordinal, uint32_t word);
/* What was copied ahead is not current any more. With the passage not in GS_WATCHED. */
void gs_move_forget(void);

#endif
