/* A refused allocation leaves a trace: in this process's slot, for the daemon, and in one line on stderr.
 *
 * Frameworks ask, are refused, free what they cached, and ask again. So the line is printed where freeing cannot help
 * (more was asked for than the share has), or when as much is refused again with nothing like it granted in between, or
 * as the program ends without having got over it; and once per process. The slot counts each call that was refused. */
#ifndef GPUSHARE_REFUSED_H
#define GPUSHARE_REFUSED_H

#include "interposer/process/process.h"

/* Memory could not be had: `bytes` more on a device. If the call is refused for it, it ends with gs_refused. */
void gs_refusal_is(enum gs_refusal why, int ordinal, uint64_t bytes);
/* Memory could be had. Cheap. */
void gs_refusal_over(int ordinal, uint64_t bytes);
/* The result of a call that may have been refused, as it goes to the program. */
CUresult gs_refused(CUresult result);
/* The same, of a call that asked for so many bytes, while more would have been taken: whole pages, and what movable
 * memory needs beside it. Not 0. */
CUresult gs_refused_of(CUresult result, uint64_t asked);

#endif
