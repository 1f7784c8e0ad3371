/* Puts the mounts of the daemon's answer into a container that is created but not started. */
#ifndef GS_PLACE_H
#define GS_PLACE_H

#include <sys/types.h>

#include "json.h"
#include "page/gs_err.h"

/* pid: the container's first process, which waits for this hook. answer: a PlaceAnswer (gpushare/api/engines.py), one
 * JSON object: its mounts are attached below its root, in order, and its hidden device nodes are removed from there.
 * Moves the calling process, which must have one thread, into the container's mount namespace. 0, or a negative errno:
 * part of it may then be done, and the container must not start. */
int gs_place(pid_t pid, struct gs_span answer, struct gs_err *err);

#endif
