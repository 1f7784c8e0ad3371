/* The grant's memory as this process takes and gives it. */
#ifndef GPUSHARE_MEMORY_CHARGE_H
#define GPUSHARE_MEMORY_CHARGE_H

#include "interposer/process/process.h"

/* Reserves bytes of the grant's memory: 0, or -ENOMEM when they do not fit. Gives nothing back first: gs_reserve
 * does. */
int gs_reserve_now(int ordinal, uint64_t bytes);
/* Bytes that the driver took without asking: charged whether they fit or not. */
void gs_charge(int ordinal, uint64_t bytes);
void gs_give_back(int ordinal, uint64_t bytes);
/* The answer to the program where it does not fit: that, or that it may allocate nothing while somebody captures, which
 * ends the capture as an allocation would. */
CUresult gs_no_room(void);

#endif
