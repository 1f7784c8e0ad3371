/* Others that may use the memory of this process: other devices, and libraries that speak with the driver past its
 * exported functions. Nothing says when they do, so while they are here the memory stays. */
#ifndef GPUSHARE_OTHERS_H
#define GPUSHARE_OTHERS_H

#include <stdbool.h>

/* Looks at the open files and mappings of this process. */
bool gs_others_use_memory(void);

#endif
