/* cuMemAlloc and its family: reserve the memory, call the driver, then keep the charge or give it back. */
#include "hooks.h"
#include "interposer/hooks/alloc.h"
#include "interposer/memory/life.h"
#include "interposer/memory/mappings.h"
#include "interposer/memory/pool_blocks.h"
#include "interposer/memory/reserve.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/memory/pool_map.h"

enum {
  ROUND = 512,      /* granularity of small allocations, which share pages of the device, and of managed memory */
  PAGE = 2097152,   /* an allocation of at least this takes whole ones */
  PITCH_ROUND = 512 /* the largest row alignment of current devices; corrected from the pitch that the driver chose */
};

static uint64_t round_up(uint64_t bytes, uint64_t multiple) {
  return bytes > UINT64_MAX - multiple ? UINT64_MAX : (bytes + multiple - 1) / multiple * multiple;
}

/* What an allocation of device memory takes. */
static uint64_t taken_by(uint64_t bytes) { return round_up(bytes, bytes < PAGE ? ROUND : PAGE); }

/* An allocation in the making. */
struct charge {
  int ordinal;
  uint64_t bytes;
  struct gs_maker maker;
};

/* To be called before the driver. Without a current context, or if the arguments are wrong whatever their size
 * (plausible is false), the error is left to the driver. */
static CUresult begin(struct charge *charge, uint64_t bytes, bool plausible) {
  CUcontext context = NULL;
  charge->bytes = bytes;
  charge->ordinal = plausible ? gs_current_device() : GS_NO_DEVICE;
  if (charge->ordinal == GS_NO_DEVICE) {
    charge->bytes = 0;
    return CUDA_SUCCESS;
  }
  gs_real.cuCtxGetCurrent(&context);
  if (!gs_table_room(&gs_books()->pointers, 1) || gs_reserve(charge->ordinal, bytes) < 0)
    return gs_no_room();
  gs_maker_begin(&charge->maker, &gs_books()->pointers_made, gs_context_owner(context));
  return CUDA_SUCCESS;
}

static CUresult end(const struct charge *charge, CUresult result, uint64_t address) {
  if (charge->ordinal == GS_NO_DEVICE)
    return result;
  if (result != CUDA_SUCCESS)
    gs_give_back(charge->ordinal, charge->bytes);
  else
    gs_table_put(&gs_books()->pointers, &(struct gs_allocation){.key = address,
                                                                .bytes = charge->bytes,
                                                                .context = charge->maker.context,
                                                                .ordinal = charge->ordinal});
  gs_maker_end(&charge->maker);
  return result;
}

CUresult gs_do_alloc(const struct gs_call *call, struct gs_out address, size_t bytes) {
  struct charge charge;
  CUresult result = begin(&charge, taken_by(bytes), address.place != NULL);
  if (result != CUDA_SUCCESS)
    return result;
  result = gs_call(call);
  return end(&charge, result, result == CUDA_SUCCESS ? gs_out_read(address) : 0);
}

CUresult gs_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  struct charge charge;
  CUresult result;
  bool plausible = dptr && bytesize && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocManaged(dptr, bytesize, flags) : result;
  if (plausible && gs_managed_refused() && gs_current_device() != GS_NO_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED;
  result = begin(&charge, round_up(bytesize, ROUND), dptr != NULL);
  if (result != CUDA_SUCCESS)
    return plausible ? result : gs_real.cuMemAllocManaged(dptr, 0, flags); /* reports what is wrong besides the size */
  result = gs_real.cuMemAllocManaged(dptr, bytesize, flags);
  return end(&charge, result, result == CUDA_SUCCESS ? *dptr : 0);
}

static uint64_t rows_bytes(uint64_t pitch, uint64_t rows) {
  return rows && pitch > UINT64_MAX / rows ? UINT64_MAX : taken_by(pitch * rows);
}

/* Otherwise the driver refuses the call whatever the size, so nothing is reserved. */
static bool element_fits(unsigned int bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

/* The driver chose a pitch: corrects the reservation, which assumed another one. False: the rest does not fit. */
static bool true_up(struct charge *charge, uint64_t bytes) {
  if (bytes <= charge->bytes)
    gs_give_back(charge->ordinal, charge->bytes - bytes);
  else if (gs_reserve(charge->ordinal, bytes - charge->bytes) < 0)
    return false;
  charge->bytes = bytes;
  return true;
}

CUresult gs_cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                            unsigned int ElementSizeBytes) {
  struct charge charge;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes)
                                  : result;
  result = begin(&charge, rows_bytes(round_up(WidthInBytes, PITCH_ROUND), Height), dptr && pPitch);
  if (result != CUDA_SUCCESS)
    return element_fits(ElementSizeBytes) ? result : gs_real.cuMemAllocPitch(dptr, pPitch, 0, Height, ElementSizeBytes);
  result = gs_real.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
  if (result == CUDA_SUCCESS && charge.ordinal != GS_NO_DEVICE && !true_up(&charge, rows_bytes(*pPitch, Height))) {
    gs_real.cuMemFree(*dptr);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return end(&charge, result, result == CUDA_SUCCESS ? *dptr : 0);
}

CUresult gs_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                               unsigned int ElementSizeBytes) {
  struct charge charge;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes)
                                  : result;
  result = begin(&charge, rows_bytes(round_up(WidthInBytes, PITCH_ROUND), Height), dptr && pPitch);
  if (result != CUDA_SUCCESS)
    return element_fits(ElementSizeBytes) ? result
                                          : gs_real.cuMemAllocPitch_v2(dptr, pPitch, 0, Height, ElementSizeBytes);
  result = gs_real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
  if (result == CUDA_SUCCESS && charge.ordinal != GS_NO_DEVICE && !true_up(&charge, rows_bytes(*pPitch, Height))) {
    gs_real.cuMemFree_v2(*dptr);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return end(&charge, result, result == CUDA_SUCCESS ? *dptr : 0);
}

bool gs_address_alive(uint64_t address) {
  CUdeviceptr base = 0;
  size_t bytes;
  return gs_real.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS && base == address;
}

CUresult gs_do_free(const struct gs_call *call, CUdeviceptr address) {
  struct gs_table *pointers = &gs_books()->pointers;
  struct gs_allocation pointer;
  struct gs_block block;
  bool ours = gs_life_leave(pointers, address, &pointer), of_pool = !ours && gs_map_frees(address, &block);
  int ordinal = ours ? pointer.ordinal : gs_current_device();
  uint64_t buffer = ours || of_pool ? 0 : gs_buffer_leaves(address);
  CUresult result = gs_call(call);
  gs_buffer_left(address, buffer, result == CUDA_SUCCESS);
  bool ended = result == CUDA_SUCCESS && !of_pool && !buffer;
  if (gs_life_left(pointers, &gs_books()->pointers_made, ours, ended, &pointer, address, gs_address_alive))
    gs_give_back(pointer.ordinal, pointer.bytes);
  if (of_pool)
    gs_pool_block_freed(&block, NULL, result == CUDA_SUCCESS);
  if (result == CUDA_SUCCESS)
    gs_memory_synced(ordinal); /* cuMemFree waits for the device's work */
  return result;
}
