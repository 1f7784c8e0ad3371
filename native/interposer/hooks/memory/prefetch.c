/* Placement of memory that may move between host and device. Managed memory is charged when it is allocated, and must
 * not move to a device that is not part of the grant. Plain memory of the program, where a device can use it (HMM,
 * ATS), is charged to nobody, so it is not moved to a device: these calls are hints, and a hint to keep it on the host,
 * which the driver checks and orders in the stream like the original, is a correct answer to them. */
#include "interposer/hooks/memory/prefetch.h"

#include "interposer/hooks/memory/stand_in.h"
#include "interposer/hooks/work/copies.h"
#include "interposer/process/elsewhere.h"

static const CUmemLocation ON_HOST = {CU_MEM_LOCATION_TYPE_HOST, 0};
enum { CPU_DEVICE = -1 };

static bool attribute(void *out, CUpointer_attribute which, CUdeviceptr at) {
  return gs_real.cuPointerGetAttribute(out, which, at) == CUDA_SUCCESS;
}

/* Whether all of a range is managed memory, of one allocation or of several adjacent ones. */
static bool managed(CUdeviceptr at, size_t bytes) {
  CUdeviceptr end = at + bytes, start;
  size_t size;
  if (end < at)
    return false;
  do {
    unsigned int is = 0;
    if (!attribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, at) || !is ||
        !attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) ||
        !attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) || start + size <= at)
      return false;
    at = start + size;
  } while (at < end);
  return true;
}

static bool stays(CUdeviceptr address, size_t bytes, CUmemLocation place) {
  return place.type == CU_MEM_LOCATION_TYPE_DEVICE && !managed(address, bytes);
}

/* Whether the place exists; if not, the driver's own error is wanted. */
static bool exists(CUmemLocation place) {
  int count = 0;
  return gs_real.cuDeviceGetCount(&count) == CUDA_SUCCESS && place.id >= 0 && place.id < count;
}

static CUresult keep_on_host(CUdeviceptr address, size_t bytes, unsigned int flags, CUstream stream) {
  return gs_real_has(GS_INDEX_cuMemPrefetchAsync_v2)
             ? gs_real.cuMemPrefetchAsync_v2(address, bytes, ON_HOST, flags, stream)
             : gs_real.cuMemPrefetchAsync(address, bytes, CPU_DEVICE, stream);
}

CUresult gs_do_prefetch(const struct gs_call *call, CUdeviceptr address, size_t bytes, CUmemLocation place,
                        unsigned int flags, CUstream stream) {
  struct gs_around_copy around;
  CUdevice device;
  if (gs_place_elsewhere(&place, 1, &device))
    return gs_refuse_elsewhere(device);
  CUresult result = gs_before_copy(&around, GS_COPY_IN, 0, stream);
  if (result != CUDA_SUCCESS)
    return result;
  result = stays(address, bytes, place) && exists(place) ? keep_on_host(address, bytes, flags, stream) : gs_call(call);
  return gs_after_copy(&around, result);
}

/* The place of address i, given that of the address before it, in a batch whose indices the driver accepts. */
static size_t next_place(const struct gs_batch *batch, size_t i, size_t place) {
  return place + 1 < batch->places && batch->first[place + 1] <= i ? place + 1 : place;
}

static bool any_stays(const struct gs_batch *batch) {
  if (!batch->address || !batch->bytes || !batch->place || !batch->first || batch->places == 0 ||
      batch->places > batch->count || batch->first[0] != 0)
    return false; /* the driver refuses it */
  for (size_t i = 0; i < batch->places; i++)
    if (batch->first[i] >= batch->count || (i > 0 && batch->first[i] <= batch->first[i - 1]) ||
        (batch->place[i].type == CU_MEM_LOCATION_TYPE_DEVICE && !exists(batch->place[i])))
      return false;
  for (size_t i = 0, place = 0; i < batch->count; i++)
    if (stays(batch->address[i], batch->bytes[i], batch->place[place = next_place(batch, i, place)]))
      return true;
  return false;
}

/* Prefetches one by one, and keeps on the host what must stay there. */
static CUresult prefetch_each(const struct gs_batch *batch, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  if (batch->discard)
    result = gs_real.cuMemDiscardBatchAsync(batch->address, batch->bytes, batch->count, batch->flags, stream);
  for (size_t i = 0, place = 0; i < batch->count && result == CUDA_SUCCESS; i++) {
    CUmemLocation to = batch->place[place = next_place(batch, i, place)];
    result = gs_real.cuMemPrefetchAsync_v2(batch->address[i], batch->bytes[i],
                                           stays(batch->address[i], batch->bytes[i], to) ? ON_HOST : to,
                                           (unsigned int)batch->flags, stream);
  }
  return result;
}

CUresult gs_do_prefetch_batch(const struct gs_call *call, struct gs_batch batch, CUstream stream) {
  struct gs_around_copy around;
  CUdevice device;
  if (gs_place_elsewhere(batch.place, batch.places, &device))
    return gs_refuse_elsewhere(device);
  CUresult result = gs_before_copy(&around, GS_COPY_IN, 0, stream);
  if (result != CUDA_SUCCESS)
    return result;
  result = any_stays(&batch) ? prefetch_each(&batch, stream) : gs_call(call);
  return gs_after_copy(&around, result);
}

CUresult gs_do_advise(const struct gs_call *call, CUdeviceptr address, size_t bytes, CUmem_advise advice,
                      CUmemLocation place) {
  CUdevice device;
  CUdeviceptr asked = gs_stand_in(address, bytes);
  if (asked != address) /* the driver has no advice for memory of cuMemAlloc */
    return gs_real.cuMemAdvise(asked, bytes, advice, place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : CPU_DEVICE);
  if (advice != CU_MEM_ADVISE_SET_PREFERRED_LOCATION) /* other advice does not place memory */
    return gs_call(call);
  if (gs_place_elsewhere(&place, 1, &device))
    return gs_refuse_elsewhere(device);
  if (!stays(address, bytes, place) || !exists(place))
    return gs_call(call);
  return gs_real.cuMemAdvise(address, bytes, advice, CPU_DEVICE);
}
