/* Whether the device has room for what a grant takes of it. While the memory of a grant that lends it is away, all of its
 * limit that its processes have not reserved may be others'. So from the daemon's word on, every call that makes the driver
 * take memory waits, whatever this process has to move: reservations look at the word after they are made, and the daemon
 * reads them after it has written the word (memory/pools/reserve.h).
 *
 * The word says how it is, not the passage: a process with nothing to move may not have seen the word yet, and nobody waits
 * for it; and once the word says that memory is to return, the room is there again. */
#ifndef GPUSHARE_ROOM_H
#define GPUSHARE_ROOM_H

#include "interposer/process/passage/passage.h"

/* Always false in a grant that keeps its memory. */
bool gs_room_away(void);

/* Waits, and says that memory is wanted, until the room is there. To be called without locks; a thread inside the passage
 * is out meanwhile. False: patience is over, and the call is to be refused. NULL: it has no end. */
bool gs_room_await(struct gs_patience *patience);

/* A call is refused because patience is over: says so. */
void gs_room_refused(void);

/* From begin to end no patience of this thread has an end: for launches, which are never refused because memory is away.
 * begin returns what end takes. */
bool gs_room_endless_begin(void);
void gs_room_endless_end(bool before);

#endif
