/* Lists of steps (gs_files.h) that a dedicated thread carries out, one after another. Making and removing a grant's
 * files is a third of the cost of a grant, most of it in the kernel, which waits for all processors when a mount is
 * removed; Python's own threads would pass the GIL back and forth for it. */
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
/* Queues a list for a directory. The steps and what they point to belong to the caller and must not change until the
 * list is done. -ENOMEM, -ENAMETOOLONG. */
int gs_file_thread_put(struct gs_file_thread *thread, const char *directory, const struct gs_step *steps,
                       uint32_t count, struct gs_err *err);
/* Number of lists done. They complete in the order they were put. */
uint64_t gs_file_thread_done(struct gs_file_thread *thread);
/* Returns once `count` lists are done. At least that many must have been put. */
void gs_file_thread_wait(struct gs_file_thread *thread, uint64_t count);
/* Gets the oldest failure not reported yet. 1: *number is the list's number, from 1, and err the reason. 0: there is
 * none. */
int gs_file_thread_failed(struct gs_file_thread *thread, uint64_t *number, struct gs_err *err);
/* Returns when all lists are done and the thread has ended. Only gs_file_thread_failed and gs_file_thread_free may
 * follow. */
void gs_file_thread_stop(struct gs_file_thread *thread);
void gs_file_thread_free(struct gs_file_thread *thread);

#endif
