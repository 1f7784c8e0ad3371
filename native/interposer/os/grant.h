/* Where this process's grant is, and the driver libraries that belong to it. */
#ifndef GPUSHARE_GRANT_H
#define GPUSHARE_GRANT_H

#include <stdbool.h>
#include <stddef.h>

/* The directory of this process's grant, or NULL. At most 4096 bytes with NUL. */
const char *gs_grant_dir(void);
/* The grant is a container's, mounted for it. */
bool gs_in_container(void);

/* Opens a library of the driver (libcuda.so.1, libnvidia-ml.so.1): the grant's, or without a grant the one the program
 * would have got without us. NULL: why says what is wrong. Never gives us ourselves. */
void *gs_open_real(const char *file, char *why, size_t size);

#endif
