#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include "interposer/process/process.h"

/* Why gs_driver_present is false. */
void gs_driver_why(struct gs_err *err);
/* Called by the lazy entries of gs_real: the function at this index, never NULL. */
void *gs_resolve(uint32_t index);

#endif
