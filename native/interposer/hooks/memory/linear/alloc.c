/* cuMemAlloc and its family: reserve the memory, call the driver, then keep the charge or give it back. */
#include "hooks.h"
#include "interposer/hooks/memory/linear/alloc.h"
#include "interposer/hooks/memory/linear/movable.h"
#include "interposer/hooks/memory/linear/reserved.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/memory/physical/mappings.h"
#include "interposer/memory/pools/async_free.h"
#include "interposer/memory/pools/pool_blocks.h"
#include "interposer/process/answers.h"
#include "interposer/process/device.h"
#include "interposer/process/passage/passage.h"
#include "interposer/process/refused.h"

/* The bytes that an allocation of device memory takes: pages above half a page (seen on an H200 with r580). */
static uint64_t taken_by(uint64_t bytes) {
  return gs_round_up(bytes, bytes <= GS_DEVICE_PAGE / 2 ? GS_BLOCK_ROUND : GS_DEVICE_PAGE);
}

static uint32_t kind_of(uint64_t bytes) { return bytes > GS_MOVABLE_ABOVE ? GS_FIXED_DIRECT : GS_FIXED_SMALL; }

CUresult gs_do_alloc(const struct gs_call *call, struct gs_out address, size_t bytes) {
  struct gs_reserved reserved = {.kind = kind_of(bytes)};
  struct gs_patience patience = {0};
  CUresult result;
  uint64_t movable;
  if (address.place && !address.narrow && gs_allocate_movable(bytes, &movable, &result)) {
    if (result == CUDA_SUCCESS)
      gs_out_write(address, movable);
    return gs_refused_of(result, bytes);
  }
  do {
    result = gs_reserved_await(&reserved, taken_by(bytes), address.place != NULL, &patience);
    if (result != CUDA_SUCCESS)
      return gs_refused_of(result, bytes);
    result = gs_call(call);
    gs_reserved_end(&reserved, result, result == CUDA_SUCCESS ? gs_out_read(address) : 0);
  } while (gs_driver_again(result, reserved.ordinal, reserved.bytes, &patience));
  return gs_refused_of(result, bytes);
}

CUresult gs_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  struct gs_reserved reserved = {.kind = GS_FIXED_MANAGED};
  struct gs_patience patience = {0};
  CUresult result;
  bool plausible = dptr && bytesize && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocManaged(dptr, bytesize, flags) : result;
  gs_answered(CUDA_SUCCESS);
  if (plausible && gs_managed_refused() && gs_current_device() != GS_NO_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED;
  do {
    result = gs_reserved_await(&reserved, gs_round_up(bytesize, GS_BLOCK_ROUND), dptr != NULL, &patience);
    if (result != CUDA_SUCCESS)
      return plausible ? gs_refused(result)
                       : gs_real.cuMemAllocManaged(dptr, 0, flags); /* reports what is wrong besides the size */
    result = gs_real.cuMemAllocManaged(dptr, bytesize, flags);
    gs_reserved_end(&reserved, result, result == CUDA_SUCCESS ? *dptr : 0);
  } while (gs_driver_again(result, reserved.ordinal, reserved.bytes, &patience));
  return gs_refused(result);
}

static uint64_t rows_bytes(uint64_t pitch, uint64_t rows) {
  return rows && pitch > UINT64_MAX / rows ? UINT64_MAX : taken_by(pitch * rows);
}

/* If not, the driver refuses the call whatever its size. */
static bool element_fits(unsigned int bytes) { return bytes == 4 || bytes == 8 || bytes == 16; }

/* Rows as a call of either version asks for them, with the driver's answer. */
struct asked {
  CUdeviceptr address;
  size_t pitch;
  CUresult (*make)(struct asked *asked, size_t width); /* asks the driver; width 0: for its error */
  CUresult (*drop)(CUdeviceptr address);
  void *address_out, *pitch_out;
  size_t width, height;
  unsigned int element;
};

static CUresult allocate_rows(struct asked *asked) {
  struct gs_reserved reserved = {.kind = kind_of((uint64_t)asked->width * asked->height)};
  struct gs_patience patience = {0};
  CUresult result;
  uint64_t most = rows_bytes(gs_round_up(asked->width, GS_PITCH_ROUND), asked->height);
  bool full;
  do {
    result = gs_reserved_await(&reserved, most, asked->address_out && asked->pitch_out, &patience);
    if (result != CUDA_SUCCESS)
      return element_fits(asked->element) ? gs_refused(result) : asked->make(asked, 0);
    result = asked->make(asked, asked->width);
    full = result == CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && reserved.ordinal != GS_NO_DEVICE &&
        !gs_reserved_correct(&reserved, rows_bytes(asked->pitch, asked->height))) {
      asked->drop(asked->address);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    gs_reserved_end(&reserved, result, asked->address);
  } while (full && gs_driver_again(result, reserved.ordinal, reserved.bytes, &patience));
  return gs_refused(result);
}

static CUresult make_rows_v1(struct asked *asked, size_t width) {
  CUresult result = gs_real.cuMemAllocPitch(asked->address_out, asked->pitch_out, (unsigned int)width,
                                            (unsigned int)asked->height, asked->element);
  if (result == CUDA_SUCCESS) {
    asked->address = *(const CUdeviceptr_v1 *)asked->address_out;
    asked->pitch = *(const unsigned int *)asked->pitch_out;
  }
  return result;
}

static CUresult make_rows(struct asked *asked, size_t width) {
  CUresult result =
      gs_real.cuMemAllocPitch_v2(asked->address_out, asked->pitch_out, width, asked->height, asked->element);
  if (result == CUDA_SUCCESS) {
    asked->address = *(const CUdeviceptr *)asked->address_out;
    asked->pitch = *(const size_t *)asked->pitch_out;
  }
  return result;
}

static CUresult drop_rows_v1(CUdeviceptr address) { return gs_real.cuMemFree((CUdeviceptr_v1)address); }
static CUresult drop_rows(CUdeviceptr address) { return gs_real.cuMemFree_v2(address); }

CUresult gs_cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                            unsigned int ElementSizeBytes) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes)
                                  : result;
  gs_answered(CUDA_SUCCESS);
  return allocate_rows(&(struct asked){.make = make_rows_v1,
                                       .drop = drop_rows_v1,
                                       .address_out = dptr,
                                       .pitch_out = pPitch,
                                       .width = WidthInBytes,
                                       .height = Height,
                                       .element = ElementSizeBytes});
}

CUresult gs_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                               unsigned int ElementSizeBytes) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes)
                                  : result;
  gs_answered(CUDA_SUCCESS);
  struct gs_rows rows = {.width = WidthInBytes, .height = Height, .element = ElementSizeBytes};
  uint64_t address;
  if (dptr && pPitch && element_fits(ElementSizeBytes) && gs_allocate_movable_rows(&rows, &address, &result)) {
    if (result == CUDA_SUCCESS) {
      *dptr = address;
      *pPitch = rows.pitch;
    }
    return gs_refused(result);
  }
  return allocate_rows(&(struct asked){.make = make_rows,
                                       .drop = drop_rows,
                                       .address_out = dptr,
                                       .pitch_out = pPitch,
                                       .width = WidthInBytes,
                                       .height = Height,
                                       .element = ElementSizeBytes});
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
  struct gs_movable movable;
  if (gs_movable_find(address, &movable) && movable.address == address && movable.proxy) {
    gs_settled_begin();
    bool still = gs_movable_find(address, &movable) && movable.address == address; /* it may have moved meanwhile */
    CUresult freed = still ? gs_free_movable(address, stream) : CUDA_ERROR_INVALID_VALUE;
    gs_settled_end();
    return freed;
  }
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
