/* Virtual memory management: calls that make, share, map, bind and end physical memory. memory/physical/objects.h keeps
 * what they hold. No lock is held during the driver's calls, which may wait for work that in turn waits for the
 * program. */
#include "hooks.h"
#include "interposer/hooks/memory/stand_in.h"
#include "interposer/hooks/memory/vmm.h"
#include "interposer/memory/physical/exports.h"
#include "interposer/memory/physical/handles.h"
#include "interposer/memory/physical/mappings.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/memory/physical/uses.h"
#include "interposer/os/files/descriptor.h"
#include "interposer/process/answers.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"
#include "interposer/process/refused.h"

/* Whether the driver would create it if there were room. Otherwise the program gets the driver's error. */
static bool plausible(const CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                      unsigned long long flags) {
  size_t step = 0;
  return handle && flags == 0 && gs_real.cuMemGetAllocationGranularity(&step, prop, 0 /* minimum */) == CUDA_SUCCESS &&
         step > 0 && size > 0 && size % step == 0;
}

/* The error for a request that cannot be met: out of memory, or the driver's error if something else is wrong too. */
static CUresult refuse(CUresult reason, CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
  if (plausible(handle, size, prop, flags))
    return reason;
  CUresult result = gs_real.cuMemCreate(handle, size, prop, flags);
  if (result != CUDA_SUCCESS)
    return result;
  gs_real.cuMemRelease(*handle); /* this driver accepts what others refuse */
  return reason;
}

/* Charged memory, with the reservation. */
static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                       unsigned long long flags, int ordinal, uint64_t charge) {
  struct gs_use use;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  bool began = gs_use_begin(&use, &(struct gs_underway){.does = GS_MAKES_HANDLE});
  if (began)
    result = gs_real.cuMemCreate(handle, size, prop, flags);
  if (result == CUDA_SUCCESS)
    gs_object_made(*handle, ordinal, charge, GS_MEMORY);
  else
    gs_give_back(ordinal, charge);
  if (began)
    gs_use_end(&use);
  return result;
}

CUresult gs_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                        unsigned long long flags) {
  CUresult result;
  struct gs_patience patience = {0};
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemCreate(handle, size, prop, flags) : result;
  gs_answered(CUDA_SUCCESS);
  bool device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (device && gs_elsewhere(prop->location.id))
    return refuse(gs_refuse_elsewhere(prop->location.id), handle, size, prop, flags);
  int ordinal = device ? gs_device_ordinal(prop->location.id) : GS_NO_DEVICE;
  uint64_t charge = ordinal == GS_NO_DEVICE ? 0 : size; /* host memory, or a request that the driver refuses */
  do {
    if (charge && gs_reserve(ordinal, charge, &patience) < 0)
      return gs_refused(refuse(CUDA_ERROR_OUT_OF_MEMORY, handle, size, prop, flags));
    result = create(handle, size, prop, flags, ordinal, charge);
  } while (gs_driver_again(result, ordinal, charge, &patience));
  return gs_refused(result);
}

CUresult gs_cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result;
  struct gs_release release;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemRelease(handle) : result;
  gs_answered(CUDA_SUCCESS);
  gs_handle_leaves(&release, handle);
  result = gs_real.cuMemRelease(handle);
  gs_handle_left(&release, result == CUDA_SUCCESS);
  gs_descriptors_settle();
  return result;
}

CUresult gs_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemMap(ptr, size, offset, handle, flags) : result;
  gs_answered(CUDA_SUCCESS);
  ptr = gs_stand_in(ptr, size);
  if (!gs_use_begin(&use, &(struct gs_underway){.handle = handle, .from = ptr, .bytes = size, .does = GS_MAPS}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemMap(ptr, size, offset, handle, flags);
  if (result == CUDA_SUCCESS)
    gs_object_mapped(&use, ptr, size, true);
  gs_use_end(&use);
  return result;
}

CUresult gs_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemUnmap(ptr, size) : result;
  gs_answered(CUDA_SUCCESS);
  ptr = gs_stand_in(ptr, size);
  struct gs_underway *call = gs_order_begin(&(struct gs_underway){.from = ptr, .bytes = size, .does = GS_UNMAPS});
  result = gs_real.cuMemUnmap(ptr, size);
  if (result == CUDA_SUCCESS)
    gs_range_unmapped(ptr, size);
  gs_order_end(call);
  gs_descriptors_settle();
  return result;
}

CUresult gs_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemRetainAllocationHandle(handle, addr) : result;
  addr = (void *)(uintptr_t)gs_stand_in((uintptr_t)addr, 1);
  if (!gs_use_begin(&use,
                    &(struct gs_underway){.from = (uintptr_t)addr, .bytes = 1, .does = GS_MAKES_HANDLE | GS_BINDS}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemRetainAllocationHandle(handle, addr);
  if (result == CUDA_SUCCESS)
    gs_object_retained(&use, *handle);
  gs_use_end(&use);
  return result;
}

/* ---- sharing ----------------------------------------------------------------------------------------------------- */

/* A name that all imports of an object share, and possibly those of other objects: a file's identity, or for other
 * kinds of handle the kind itself. Drivers that export files of one device node give all of them one name. */
static uint64_t name_of(const void *shared, CUmemAllocationHandleType type) {
  bool is_file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return is_file ? gs_descriptor_file((int)(intptr_t)shared) : (uint64_t)type << 1; /* even: not a file's */
}

CUresult gs_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                         CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags)
                                  : result;
  if (!gs_use_begin(&use, &(struct gs_underway){.handle = handle, .does = GS_EXPORTS}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
  if (result == CUDA_SUCCESS) {
    int fd = handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? *(const int *)shareableHandle : -1;
    gs_object_exported(&use, name_of((void *)(intptr_t)fd, handleType), fd);
  }
  gs_use_end(&use);
  return result;
}

/* What another process exported is charged to that one. */
CUresult gs_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                           CUmemAllocationHandleType shHandleType) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemImportFromShareableHandle(handle, osHandle, shHandleType) : result;
  if (!gs_use_begin(&use, &(struct gs_underway){.does = GS_MAKES_HANDLE | GS_IMPORTS}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  /* A copy is used, because another thread may close the descriptor, and its number be reused, between this look and
   * the driver's. If it is not open, the driver gets -1. */
  bool is_file = shHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int copy = is_file ? gs_descriptor_copy((int)(intptr_t)osHandle) : -1;
  void *shared = is_file ? (void *)(intptr_t)copy : osHandle;
  uint64_t name = name_of(shared, shHandleType);
  gs_import_begin(&use, name);
  result = gs_real.cuMemImportFromShareableHandle(handle, shared, shHandleType);
  gs_import_end(&use, result == CUDA_SUCCESS ? *handle : 0);
  gs_descriptor_drop(copy);
  gs_use_end(&use);
  return result;
}

/* ---- multicast objects ------------------------------------------------------------------------------------------- */

CUresult gs_cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMulticastCreate(mcHandle, prop) : result;
  if (!gs_use_begin(&use, &(struct gs_underway){.does = GS_MAKES_HANDLE}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastCreate(mcHandle, prop);
  if (result == CUDA_SUCCESS)
    gs_object_made(*mcHandle, GS_NO_DEVICE, 0, GS_MULTICAST);
  gs_use_end(&use);
  return result;
}

CUresult gs_do_multicast_bind(const struct gs_call *call, CUmemGenericAllocationHandle object, CUdevice device,
                              size_t offset, size_t bytes, CUmemGenericAllocationHandle memory, CUdeviceptr address) {
  struct gs_use use;
  if (address && gs_stand_in(address, bytes) != address)
    return CUDA_ERROR_INVALID_VALUE; /* as for memory of cuMemAlloc, which cannot be bound */
  const struct gs_underway what = {
      .handle = object, .other = memory, .from = address, .bytes = address ? bytes : 0, .does = GS_BINDS};
  if (!gs_use_begin(&use, &what))
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = gs_call(call);
  if (result == CUDA_SUCCESS)
    gs_object_bound(&use, device, offset, bytes);
  gs_use_end(&use);
  return result;
}

CUresult gs_cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMulticastUnbind(mcHandle, dev, mcOffset, size) : result;
  struct gs_underway *call = gs_order_begin(&(struct gs_underway){.handle = mcHandle, .does = GS_IS_ALONE});
  result = gs_real.cuMulticastUnbind(mcHandle, dev, mcOffset, size);
  if (result == CUDA_SUCCESS)
    gs_object_unbound(mcHandle, dev, mcOffset, size);
  gs_order_end(call);
  gs_descriptors_settle();
  return result;
}
