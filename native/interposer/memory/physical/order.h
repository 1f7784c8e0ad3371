/* Orders the calls in progress that concern physical memory, so that what a call names stays what the books say it is,
 * from before the driver's call until its effect is recorded:
 *
 *   A call that ends what a handle names, or what is bound to it, excludes other calls that name the handle. One that
 *   maps or unmaps excludes others on the same addresses.
 *   Imports and exports wait for each other, since several exports may have one name.
 *   A handle that is not in the books, which can only be a guess, may be one that the driver is just giving to another
 *   call: calls that name such a handle and calls that make handles wait for each other.
 *
 * Each call waits only for earlier ones, so they never wait in a circle. A call that blocks in the driver
 * (cuMulticastBindMem, until all devices are added) delays only calls that name the same handles or addresses. */
#ifndef GPUSHARE_MEMORY_ORDER_H
#define GPUSHARE_MEMORY_ORDER_H

#include "interposer/memory/books/underway.h"

/* What a call does, as far as it decides which calls wait. */
enum gs_does {
  GS_MAKES_HANDLE = 1,
  GS_IS_ALONE = 2, /* excludes others that name `handle` */
  GS_MAPS = 4,
  GS_UNMAPS = 8,
  GS_BINDS = 16, /* an object may hold another afterwards */
  GS_EXPORTS = 32,
  GS_IMPORTS = 64,
  GS_NAMES_MANY = 128, /* names handles that are not listed */
  GS_GUESSES = 256     /* names a handle that is not in the books */
};

/* To be called around the driver's call and the recording of its effect, with no lock held. The number and thread of
 * `wanted` are ignored. Returns the argument for gs_order_end. */
struct gs_underway *gs_order_begin(const struct gs_underway *wanted);
void gs_order_end(struct gs_underway *call);

#endif
