/* Memory that other processes and other devices get at. */
#ifndef GPUSHARE_HOOKS_SHARING_H
#define GPUSHARE_HOOKS_SHARING_H

#include "interposer/hooks/call.h"

/* Prints a line about what movable memory cannot do, unless *said, and returns CUDA_ERROR_NOT_SUPPORTED. */
CUresult gs_refuse_moving(uint32_t *said, const char *what);

CUresult gs_do_ipc_export(const struct gs_call *call, const CUipcMemHandle *handle, CUdeviceptr address);
CUresult gs_do_range_handle(const struct gs_call *call, CUdeviceptr address);

#endif
