/* cuMemAlloc and its family: reserve the memory, call the driver, then keep the charge or give it back. */
#include "hooks.h"
#include "interposer/hooks/memory/alloc.h"
#include "interposer/memory/pools/async_free.h"
#include "interposer/memory/books/charge.h"
#include "interposer/memory/books/life.h"
#include "interposer/memory/physical/mappings.h"
#include "interposer/memory/pools/pool_blocks.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"

/* The largest row alignment of current devices; corrected from the pitch that the driver chose. */
enum { PITCH_ROUND = 512 };

/* The bytes that an allocation of device memory takes: pages above half a page (seen on an H200 with r580). */
static uint64_t taken_by(uint64_t bytes) {
  return gs_round_up(bytes, bytes <= GS_DEVICE_PAGE / 2 ? GS_BLOCK_ROUND : GS_DEVICE_PAGE);
}

/* An allocation that is being made. */
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
    gs_life_put(&charge->maker, &gs_books()->pointers,
                &(struct gs_allocation){.living.key = address,
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
  result = begin(&charge, gs_round_up(bytesize, GS_BLOCK_ROUND), dptr != NULL);
  if (result != CUDA_SUCCESS)
    return plausible ? result : gs_real.cuMemAllocManaged(dptr, 0, flags); /* reports what is wrong besides the size */
  result = gs_real.cuMemAllocManaged(dptr, bytesize, flags);
  return end(&charge, result, result == CUDA_SUCCESS ? *dptr : 0);
}

static uint64_t rows_bytes(uint64_t pitch, uint64_t rows) {
  return rows && pitch > UINT64_MAX / rows ? UINT64_MAX : taken_by(pitch * rows);
}

/* If not, the driver refuses the call whatever its size. */
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
  result = begin(&charge, rows_bytes(gs_round_up(WidthInBytes, PITCH_ROUND), Height), dptr && pPitch);
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
  result = begin(&charge, rows_bytes(gs_round_up(WidthInBytes, PITCH_ROUND), Height), dptr && pPitch);
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

static bool is_alive(uint64_t address) {
  CUdeviceptr base = 0;
  size_t bytes;
  return gs_real.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS && base == address;
}

/* Waits for allocations from pools that are in progress. */
static void wait_for_pools(void) {
  for (uint32_t i = 0; i < gs_process->ndevices; i++) {
    gs_lock(&gs_process->alloc_lock[i]);
    gs_unlock(&gs_process->alloc_lock[i]);
  }
}

/* Nothing was known at the address when the call that freed it began. True: a pool's block was made there and freed
 * since. */
static bool block_came(CUdeviceptr address, struct gs_block *block) {
  if (__atomic_load_n(&gs_books()->pools.used, __ATOMIC_RELAXED) == 0)
    return false;
  wait_for_pools();
  if (!gs_block_frees(address, block))
    return false;
  if (!is_alive(address))
    return true;
  gs_block_freed(block, NULL, false);
  return false;
}

static void pointer_gone(const void *record, void *stream) {
  const struct gs_allocation *pointer = record;
  if (pointer->mapping)
    gs_buffer_gone(pointer->living.key, pointer->mapping);
  if (stream)
    gs_free_queued(pointer->ordinal, pointer->bytes, *(const CUstream *)stream);
  else
    gs_give_back(pointer->ordinal, pointer->bytes);
}

/* stream: in whose order it is freed; NULL: at once. */
static CUresult free_memory(const struct gs_call *call, CUdeviceptr address, CUstream *stream) {
  const struct gs_family pointers = {&gs_books()->pointers, &gs_books()->pointers_made, is_alive};
  struct gs_leaving leaving;
  struct gs_allocation pointer;
  struct gs_block block;
  bool ours = gs_life_leave(&pointers, &leaving, address, &pointer), of_pool = !ours && gs_block_frees(address, &block);
  int ordinal = ours ? pointer.ordinal : gs_current_device();
  CUresult result = gs_call(call);
  bool success = result == CUDA_SUCCESS;
  of_pool = of_pool || (success && !ours && address && block_came(address, &block));
  gs_life_left(&pointers, &leaving, success && !of_pool, pointer_gone, stream);
  if (of_pool)
    gs_block_freed(&block, stream, success);
  if (success && !stream)
    gs_memory_synced(ordinal); /* cuMemFree waits for the device's work */
  return result;
}

CUresult gs_do_free(const struct gs_call *call, CUdeviceptr address) { return free_memory(call, address, NULL); }

CUresult gs_do_free_async(const struct gs_call *call, CUdeviceptr address, CUstream stream) {
  return free_memory(call, address, &stream);
}
