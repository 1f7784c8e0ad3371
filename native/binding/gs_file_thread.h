/* Lists of steps (gs_files.h) that a thread of its own carries out, one after the other. To make and remove a grant's
 * files is a third of what a grant costs, most of it in the kernel, which waits for all processors when a mount is taken
 * away; Python's own threads would hand their lock to and fro for it. */
#ifndef GS_FILE_THREAD_H
#define GS_FILE_THREAD_H

#ifndef GS_CFFI
#include <stdint.h>
#include "binding/gs_files.h"
#include "page/gs_err.h"
#endif

struct gs_file_thread;

/* `bell`: an eventfd of the caller's, written when a list is done. */
int gs_file_thread_start(int bell, struct gs_file_thread **out, struct gs_err *err);
/* Takes a list, and the directory that it is for. The steps and what they point to are the caller's, and stay as they
 * are until it is done. -ENOMEM, -ENAMETOOLONG. */
int gs_file_thread_put(struct gs_file_thread *thread, const char *directory, const struct gs_step *steps,
                       uint32_t count, struct gs_err *err);
/* How many are done: as many of those that were put first. */
uint64_t gs_file_thread_done(struct gs_file_thread *thread);
/* Returns when so many are. That many have been put. */
void gs_file_thread_wait(struct gs_file_thread *thread, uint64_t count);
/* 1: the first list in which a step failed that was not told yet: its number, from 1, and why. 0: there is none. */
int gs_file_thread_failed(struct gs_file_thread *thread, uint64_t *number, struct gs_err *err);
/* Returns when all are done and the thread has ended. Only gs_file_thread_failed and gs_file_thread_free may follow. */
void gs_file_thread_stop(struct gs_file_thread *thread);
void gs_file_thread_free(struct gs_file_thread *thread);

#endif
