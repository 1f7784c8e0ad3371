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
#include "interposer/process/passage.h"
#include "interposer/residency/backing.h"
#include "interposer/residency/leaving.h"
#include "interposer/residency/mover.h"
#include "interposer/time/streams/capture.h"
#include "interposer/time/timing.h"

/* The largest row alignment of current devices; corrected from the pitch that the driver chose. */
enum { PITCH_ROUND = 512 };
/* Wider rows are not movable: the proxy is as wide. */
enum { ROW_MOST = 64 << 10 };

/* The bytes that an allocation of device memory takes: pages above half a page (seen on an H200 with r580). */
static uint64_t taken_by(uint64_t bytes) {
  return gs_round_up(bytes, bytes <= GS_DEVICE_PAGE / 2 ? GS_BLOCK_ROUND : GS_DEVICE_PAGE);
}

/* An allocation that is being made. */
struct charge {
  int ordinal;
  uint64_t bytes;
  uint32_t kind; /* gs_allocation.kind */
  struct gs_maker maker;
};

static bool reserve(int ordinal, uint64_t bytes) {
  uint32_t leaving;
  int rc;
  do {
    leaving = gs_movable_leaving();
    rc = gs_reserve(ordinal, bytes);
  } while (rc < 0 && gs_movable_hurry(leaving));
  return rc == 0;
}

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
  if (!gs_table_room(&gs_books()->pointers, 1) || !reserve(charge->ordinal, bytes))
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
                                        .ordinal = charge->ordinal,
                                        .kind = charge->kind});
  gs_maker_end(&charge->maker);
  return result;
}

/* ---- movable memory ---------------------------------------------------------------------------------------------- */

/* The driver chose a pitch: corrects the reservation, which assumed another one. False: the rest does not fit. */
static bool true_up(struct charge *charge, uint64_t bytes) {
  if (bytes <= charge->bytes)
    gs_give_back(charge->ordinal, charge->bytes - bytes);
  else if (gs_reserve(charge->ordinal, bytes - charge->bytes) < 0)
    return false;
  charge->bytes = bytes;
  return true;
}

/* To be called between gs_touch_begin and gs_touch_end when the driver has made the proxy, or has refused it. */
static CUresult make_movable(struct charge *charge, CUresult result, struct gs_movable made, uint64_t *address) {
  struct gs_allocation known;
  bool proxy = result == CUDA_SUCCESS;
  made.ordinal = charge->ordinal;
  made.context = charge->maker.context;
  if (proxy && !true_up(charge, gs_movable_bytes(made.asked) + made.proxied))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS)
    result = gs_movable_make(made, address);
  if (proxy && result != CUDA_SUCCESS)
    gs_real.cuMemFree_v2(made.proxy);
  end(charge, result, result == CUDA_SUCCESS ? *address : 0);
  /* its context has ended meanwhile, and its charge is given back */
  if (result == CUDA_SUCCESS && !gs_life_copy(&gs_books()->pointers, *address, &known) &&
      gs_movable_find(*address, &made))
    gs_movable_abandon(made.address, made.number);
  return result;
}

/* On which device; GS_NO_DEVICE: it is to be the driver's own. */
static int movable_on(uint64_t bytes) {
  int ordinal = gs_movable_wanted(bytes) ? gs_current_device() : GS_NO_DEVICE;
  return ordinal != GS_NO_DEVICE && gs_mover_start() && gs_movable_ready(ordinal) ? ordinal : GS_NO_DEVICE;
}

/* False: it is to be the driver's own. */
static bool allocate_movable(uint64_t bytes, uint64_t *address, CUresult *result) {
  struct gs_movable made = {.asked = bytes, .proxied = GS_BLOCK_ROUND};
  struct charge charge = {.kind = GS_FIXED_KINDS};
  if (movable_on(bytes) == GS_NO_DEVICE)
    return false;
  gs_touch_begin();
  *result = begin(&charge, gs_movable_bytes(bytes) + made.proxied, true);
  if (*result == CUDA_SUCCESS)
    *result = make_movable(&charge, gs_real.cuMemAlloc_v2(&made.proxy, 1), made, address);
  gs_touch_end();
  return true;
}

/* Rows: the driver says by a single one, which is the proxy, how far apart they are. */
struct rows {
  size_t width, height, pitch;
  unsigned int element;
};
static bool allocate_movable_rows(struct rows *rows, CUdeviceptr *address, CUresult *result) {
  uint64_t pitch = gs_round_up(rows->width, PITCH_ROUND);
  struct gs_movable made = {.proxied = 0};
  struct charge charge = {.kind = GS_FIXED_KINDS};
  if (rows->width > ROW_MOST || rows->height > UINT64_MAX / 4 / ROW_MOST ||
      movable_on(pitch * rows->height) == GS_NO_DEVICE)
    return false;
  gs_touch_begin();
  *result = begin(&charge, gs_movable_bytes(pitch * rows->height) + pitch, true);
  if (*result == CUDA_SUCCESS) {
    CUresult row = gs_real.cuMemAllocPitch_v2(&made.proxy, &rows->pitch, rows->width, 1, rows->element);
    made.asked = row == CUDA_SUCCESS ? rows->pitch * rows->height : 0;
    made.proxied = row == CUDA_SUCCESS ? (uint32_t)gs_round_up(rows->pitch, GS_BLOCK_ROUND) : 0;
    *result = make_movable(&charge, row, made, address);
  }
  gs_touch_end();
  return true;
}

static void movable_gone(const void *record, void *with) {
  const struct gs_movable *movable = with;
  (void)record;
  gs_movable_end(movable->address, movable->number);
}

/* In the order of a stream, or while captures keep us from waiting for the device. */
struct later {
  const struct gs_movable *movable;
  const CUstream *stream;
};
static void movable_goes(const void *record, void *with) {
  const struct later *later = with;
  (void)record;
  gs_movable_end_later(later->movable->address, later->movable->number, later->stream);
}

/* Waits for all work of the current context. False: captures keep us from that. They may begin while an event is waited
 * for; before CUDA 12.5 there is none behind all work. */
static bool work_done(CUcontext context) {
  struct gs_time *time = gs_time();
  CUevent event = NULL;
  CUresult result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, recorded = CUDA_ERROR_NOT_SUPPORTED;
  bool may_look = !time || gs_captures_keep_off(time);
  if (may_look && gs_real_has(GS_INDEX_cuCtxRecordEvent) &&
      gs_real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
    recorded = gs_real.cuCtxRecordEvent(context, event);
  if (may_look && recorded != CUDA_SUCCESS && recorded != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    result = gs_real.cuCtxSynchronize();
  if (time)
    gs_captures_let(time);
  if (event) {
    int mode = gs_capture_mode_push();
    if (recorded == CUDA_SUCCESS)
      result = gs_real.cuEventSynchronize(event);
    gs_real.cuEventDestroy_v2(event);
    gs_capture_mode_pop(mode);
  }
  return result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Whether the driver lets memory go now, and all work that may use it is done. */
static bool unused_now(const struct gs_movable *movable) {
  CUcontext popped;
  if (movable->where == GS_ON_HOST)
    return true;
  if (gs_real.cuCtxPushCurrent_v2(movable->context) != CUDA_SUCCESS)
    return false;
  bool unused = work_done(movable->context);
  gs_real.cuCtxPopCurrent_v2(&popped);
  return unused;
}

/* The driver answers for the proxy whether the call is allowed. It waits, like the driver's own free, for the device. */
static CUresult free_movable(const struct gs_movable *movable, const CUstream *stream) {
  const struct gs_family pointers = {&gs_books()->pointers, &gs_books()->pointers_made, NULL};
  struct gs_leaving leaving;
  struct gs_allocation pointer;
  struct later later = {movable, stream};
  if (!gs_life_leave(&pointers, &leaving, movable->address, &pointer)) {
    gs_life_left(&pointers, &leaving, false, movable_gone, NULL);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = stream ? gs_real.cuMemFreeAsync(movable->proxy, *stream) : gs_real.cuMemFree_v2(movable->proxy);
  bool success = result == CUDA_SUCCESS;
  if (success && !stream && unused_now(movable))
    gs_life_left(&pointers, &leaving, true, movable_gone, (void *)(uintptr_t)movable);
  else
    gs_life_left(&pointers, &leaving, success, movable_goes, &later);
  if (success && !stream)
    gs_memory_synced(movable->ordinal);
  return result;
}

/* ---- the driver's own -------------------------------------------------------------------------------------------- */

static uint32_t kind_of(uint64_t bytes) { return bytes > GS_MOVABLE_ABOVE ? GS_FIXED_DIRECT : GS_FIXED_SMALL; }

CUresult gs_do_alloc(const struct gs_call *call, struct gs_out address, size_t bytes) {
  struct charge charge = {.kind = kind_of(bytes)};
  CUresult result;
  uint64_t movable;
  if (address.place && !address.narrow && allocate_movable(bytes, &movable, &result)) {
    if (result == CUDA_SUCCESS)
      gs_out_write(address, movable);
    return result;
  }
  result = begin(&charge, taken_by(bytes), address.place != NULL);
  if (result != CUDA_SUCCESS)
    return result;
  result = gs_call(call);
  return end(&charge, result, result == CUDA_SUCCESS ? gs_out_read(address) : 0);
}

CUresult gs_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  struct charge charge = {.kind = GS_FIXED_MANAGED};
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

CUresult gs_cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                            unsigned int ElementSizeBytes) {
  struct charge charge;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes)
                                  : result;
  charge.kind = kind_of((uint64_t)WidthInBytes * Height);
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
  struct rows rows = {.width = WidthInBytes, .height = Height, .element = ElementSizeBytes};
  CUdeviceptr address;
  if (dptr && pPitch && element_fits(ElementSizeBytes) && allocate_movable_rows(&rows, &address, &result)) {
    if (result == CUDA_SUCCESS) {
      *dptr = address;
      *pPitch = rows.pitch;
    }
    return result;
  }
  charge.kind = kind_of((uint64_t)WidthInBytes * Height);
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
  struct gs_movable movable;
  if (gs_movable_find(address, &movable) && movable.address == address && movable.proxy) {
    gs_settled_begin();
    bool still = gs_movable_find(address, &movable) && movable.address == address; /* it may have moved meanwhile */
    CUresult freed = still ? free_movable(&movable, stream) : CUDA_ERROR_INVALID_VALUE;
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
