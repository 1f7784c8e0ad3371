/* Directories that are removed by a thread of their own, one after the other: to take a mount away waits for all
 * processors, which is longer than all else that the end of a grant takes, and Python's threads would hand their lock to
 * and fro for it. */
#ifndef GS_SWEEPER_H
#define GS_SWEEPER_H

#ifndef GS_CFFI
#include <stdint.h>
#include "binding/gs_files.h"
#include "page/gs_err.h"
#endif

struct gs_sweeper;

/* `steps`: what is done in each directory; the caller's, as what they point to, and there until gs_sweeper_stop. `bell`:
 * an eventfd of the caller's, written when a directory is done. */
int gs_sweeper_start(const struct gs_step *steps, uint32_t count, int bell, struct gs_sweeper **out,
                     struct gs_err *err);
/* Takes a directory. -ENOMEM, -ENAMETOOLONG. */
int gs_sweeper_put(struct gs_sweeper *sweeper, const char *directory, struct gs_err *err);
/* How many are done. */
uint64_t gs_sweeper_done(struct gs_sweeper *sweeper);
/* 1: a directory, into `out` of `size` bytes, in which a step failed, each once; 0: there is none. */
int gs_sweeper_failed(struct gs_sweeper *sweeper, char *out, uint64_t size);
/* Returns when all are done and the thread has ended. Only gs_sweeper_failed and gs_sweeper_free may follow. */
void gs_sweeper_stop(struct gs_sweeper *sweeper);
void gs_sweeper_free(struct gs_sweeper *sweeper);

#endif
