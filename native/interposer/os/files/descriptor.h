/* Whether a descriptor is still open anywhere: in this process, in another that has a copy, or on its way to one.
 *
 * The kernel frees a lock of an open file description when its last descriptor is closed. So the description gets a lock
 * on a byte that nobody else locks, and a second description of the same file asks whether that lock is there. */
#ifndef GPUSHARE_DESCRIPTOR_H
#define GPUSHARE_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

/* The file's identity; 0: not an open descriptor. */
uint64_t gs_descriptor_file(int fd);

/* Returns a copy, for a call that uses the file twice; -1: not an open descriptor. gs_descriptor_drop closes it. */
int gs_descriptor_copy(int fd);
void gs_descriptor_drop(int copy);

/* Opens a second description of the file, to be closed with gs_descriptor_unwatch. -1: the system does not allow it. */
int gs_descriptor_watcher(int fd);
/* Locks the byte, which must be the caller's alone among all processes of this machine. False: the system has no such
 * locks. */
bool gs_descriptor_lock(int fd, uint64_t byte);
/* Whether the descriptor that was locked is still open anywhere. watcher, file: of that descriptor. True also if it
 * cannot be determined. */
bool gs_descriptor_is_open(int watcher, uint64_t file, uint64_t byte);
void gs_descriptor_unwatch(int watcher, uint64_t file);

#endif
