/* Finds this process's grant and the driver libraries that belong to it. */
#ifndef GPUSHARE_GRANT_H
#define GPUSHARE_GRANT_H

#include <stdbool.h>
#include <stddef.h>

#include "page/gs_err.h"

/* The directory of this process's grant, or NULL if there is none. At most 4096 bytes with the NUL. It may be hidden
 * from the process: gs_grant_check. */
const char *gs_grant_dir(void);
/* A negative errno if the grant's directory is not there for this process, as in a sandbox that does not have it. */
int gs_grant_check(struct gs_err *err);
/* Whether the grant is mounted in a container. */
bool gs_in_container(void);

/* Directories of a grant with the driver's libraries, NULL-terminated: first a newer driver that a container's image
 * brings for an older host (CUDA's forward compatibility; empty if there is none), then the host's. A library is taken
 * from the first that has it. */
extern const char *const gs_driver_dirs[];

/* Opens a library of the driver (libcuda.so.1, libnvidia-ml.so.1): the grant's or, without a grant, the one that the
 * program would have got without the interposer. Never returns the interposer itself. NULL: `why` has the reason. */
void *gs_open_real(const char *file, char *why, size_t size);

#endif
