/* Calls that report the amount of memory to the program. */
#ifndef GPUSHARE_HOOKS_REPORT_H
#define GPUSHARE_HOOKS_REPORT_H

#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

CUresult gs_do_memory_info(const struct gs_call *call, struct gs_out free, struct gs_out total);
CUresult gs_do_memory_total(const struct gs_call *call, struct gs_out total, CUdevice device);

#endif
