/* The real driver.
 *
 * driver_real.h (generated) has
 *   gs_real.<symbol>(...)   the typed function, resolved on first use. One that the driver lacks returns
 *                           CUDA_ERROR_NOT_FOUND; check gs_real_has(GS_INDEX_<symbol>) where that matters. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "driver_real.h" /* generated */
#include "page/gs_err.h"

/* False when no driver was found: then every gs_real function returns CUDA_ERROR_NO_DEVICE. */
bool gs_driver_present(void);
/* Fills err with the reason why gs_driver_present is false. */
void gs_driver_why(struct gs_err *err);
/* Whether the real driver has this function. */
bool gs_real_has(enum gs_index index);

/* Called by the lazy entries of gs_real: returns the function at this index, never NULL, and stores it in the entry. */
void *gs_resolve(uint32_t index, void **entry);

#endif
