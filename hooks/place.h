/* Puts what a container lacks of its share into it, when it is created but not started. */
#ifndef GS_PLACE_H
#define GS_PLACE_H

#include <sys/types.h>

#include "json.h"
#include "page/gs_err.h"

/* pid: the container's first process, which waits for this hook. answer: a PlaceAnswer (gpushare/api/engines.py), one
 * JSON object: those of its mounts that the container does not see are attached below its root, in order, its hidden
 * device nodes are removed from there, and all of its mounts are looked at again. Moves the calling process, which must
 * have one thread, into the container's mount namespace. 0, or a negative errno: part of it may then be done, and the
 * container must not start. */
int gs_place(pid_t pid, struct gs_span answer, struct gs_err *err);

#endif
