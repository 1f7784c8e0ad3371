/* The driver is asked about the proxy (stand_in.h). Its answers hold for the allocation, except for addresses and sizes,
 * and for what mapped memory cannot do. */
#include "interposer/hooks/memory/pointers.h"

#include <string.h>

#include "interposer/hooks/memory/sharing.h"
#include "interposer/hooks/memory/stand_in.h"
#include "interposer/process/device.h"
#include "interposer/process/passage/passage.h"

CUresult gs_do_address_range(const struct gs_call *call, struct gs_out base, struct gs_out bytes, CUdeviceptr address) {
  struct gs_movable at;
  CUdeviceptr start;
  size_t size;
  if (!gs_stands_for(address, &at))
    return gs_call(call);
  CUresult result = gs_real.cuMemGetAddressRange_v2(base.place ? &start : NULL, bytes.place ? &size : NULL, at.proxy);
  if (result == CUDA_SUCCESS) {
    gs_out_write(base, at.address);
    gs_out_write(bytes, at.asked);
  }
  return result;
}

static bool moves_with_rdma(const struct gs_movable *at) {
  int supported = 0;
  return gs_real.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                      gs_device_of(at->ordinal)) == CUDA_SUCCESS &&
         supported;
}

/* Whether the driver tells the size of the pages behind memory, or that of the memory; size: what it told of the proxy. */
static bool shows_pages(const struct gs_movable *at, const void *size) {
  uint64_t asked = 0, told;
  memcpy(&told, size, sizeof told);
  return gs_real.cuPointerGetAttribute(&asked, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at->proxy) == CUDA_SUCCESS &&
         told > asked;
}

/* Turns the driver's answer about the proxy into that about an address of the allocation. */
static void translate(const struct gs_movable *at, CUdeviceptr address, CUpointer_attribute attribute, void *data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: memcpy(data, &address, sizeof address); break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: memcpy(data, &at->address, sizeof at->address); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: memcpy(data, &at->asked, sizeof at->asked); break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      memcpy(data, shows_pages(at, data) ? &at->bytes : &at->asked, sizeof at->bytes);
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(bool *)data = false; break; /* sharing.c */
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      if (!moves_with_rdma(at))
        *(bool *)data = false;
      break;
    default: break;
  }
}

/* Tokens name the pages for another driver of this machine, which then keeps them in place. */
static CUresult tokens(const struct gs_call *call, const struct gs_movable *at, const void *data) {
  static uint32_t said;
  uint64_t of_proxy[2];
  CUresult result = gs_real.cuPointerGetAttribute(data ? of_proxy : NULL, CU_POINTER_ATTRIBUTE_P2P_TOKENS, at->proxy);
  if (result != CUDA_SUCCESS)
    return result;
  gs_touch_begin();
  gs_movable_fix(at->address, GS_FIXED_EXPORTED);
  result = gs_call(call);
  gs_touch_end();
  return result == CUDA_SUCCESS ? result : gs_refuse_moving(&said, "CU_POINTER_ATTRIBUTE_P2P_TOKENS");
}

CUresult gs_do_pointer_attribute(const struct gs_call *call, void *data, CUpointer_attribute attribute,
                                 CUdeviceptr address) {
  struct gs_movable at;
  if (!gs_stands_for(address, &at))
    return gs_call(call);
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
    return tokens(call, &at, data);
  CUresult result = gs_real.cuPointerGetAttribute(data, attribute, at.proxy);
  if (result == CUDA_SUCCESS && at.proxy)
    translate(&at, address, attribute, data);
  return result;
}

CUresult gs_do_pointer_attributes(const struct gs_call *call, unsigned int count, CUpointer_attribute *attribute,
                                  void **data, CUdeviceptr address) {
  struct gs_movable at;
  if (!gs_stands_for(address, &at))
    return gs_call(call);
  CUresult result = gs_real.cuPointerGetAttributes(count, attribute, data, at.proxy);
  for (unsigned int i = 0; i < count && result == CUDA_SUCCESS && at.proxy; i++)
    if (data[i])
      translate(&at, address, attribute[i], data[i]);
  return result;
}

/* Drivers refuse CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for mapped memory. The context's flag does the same for all that is
 * done in the context. */
static bool synchronise(CUcontext context) {
  unsigned int flags = 0;
  if (gs_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return false;
  CUresult result = gs_real.cuCtxGetFlags(&flags);
  if (result == CUDA_SUCCESS)
    result = gs_real.cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
  gs_real.cuCtxPopCurrent_v2(&context);
  return result == CUDA_SUCCESS;
}

/* The only attribute that can be set is CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, before another device gets at the memory: it has
 * to be on the device, and is not moved from now on. */
CUresult gs_do_pointer_set(const struct gs_call *call, const void *value, CUpointer_attribute attribute,
                           CUdeviceptr address) {
  static const unsigned int OFF = 0;
  static uint32_t said;
  struct gs_movable at;
  if (!gs_stands_for(address, &at))
    return gs_call(call);
  CUresult result = gs_real.cuPointerSetAttribute(value, attribute, at.proxy);
  if (result != CUDA_SUCCESS || *(const unsigned int *)value == 0)
    return result;
  gs_touch_begin();
  gs_movable_fix(at.address, GS_FIXED_SYNCED);
  gs_touch_end();
  if (synchronise(at.context))
    return CUDA_SUCCESS;
  gs_real.cuPointerSetAttribute(&OFF, attribute, at.proxy);
  return gs_refuse_moving(&said, "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS");
}
