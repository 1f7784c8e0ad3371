/* What a program asks and sets about an address. Memory that may be moved answers as memory of cuMemAlloc does. */
#ifndef GPUSHARE_HOOKS_POINTERS_H
#define GPUSHARE_HOOKS_POINTERS_H

#include "interposer/hooks/call.h"

CUresult gs_do_address_range(const struct gs_call *call, struct gs_out base, struct gs_out bytes, CUdeviceptr address);
CUresult gs_do_pointer_attribute(const struct gs_call *call, void *data, CUpointer_attribute attribute,
                                 CUdeviceptr address);
CUresult gs_do_pointer_attributes(const struct gs_call *call, unsigned int count, CUpointer_attribute *attribute,
                                  void **data, CUdeviceptr address);
CUresult gs_do_pointer_set(const struct gs_call *call, const void *value, CUpointer_attribute attribute,
                           CUdeviceptr address);

#endif
