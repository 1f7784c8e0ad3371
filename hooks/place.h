/* Puts what the daemon answers into a container that is made and not started. */
#ifndef GS_PLACE_H
#define GS_PLACE_H

#include <sys/types.h>

#include "json.h"
#include "page/gs_err.h"

/* pid: of the container's first process, which waits for this hook. answer: a PlaceAnswer (gpushare/api/engines.py), one
 * JSON object: its mounts are attached below its root, in their order, and its hidden device nodes are removed from
 * there. Moves the calling process, which has one thread, into the container's mount namespace. 0 or a negative errno:
 * then some of it may be done, and the container must not start. */
int gs_place(pid_t pid, struct gs_span answer, struct gs_err *err);

#endif
