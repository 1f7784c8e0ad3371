/* Virtual memory management: physical memory lives until its last handle and its last mapping are gone, in any order. Each
 * piece is an object of ours, to which handles and mappings link. */
#include "books.h"
#include "device.h"

static uint64_t objects; /* numbers given out */

/* One holder less. The last gives the bytes back. Books lock held; the entry may be gone after. */
static uint64_t drop(struct gs_entry *object, int *ordinal) {
  if (--object->count > 0)
    return 0;
  uint64_t bytes = object->bytes;
  *ordinal = object->ordinal;
  gs_book_remove(object);
  return bytes;
}

static struct gs_entry *object_of(uint64_t handle) {
  struct gs_entry *entry = gs_book_find(GS_BOOK_HANDLE, handle);
  return entry ? gs_book_find(GS_BOOK_OBJECT, entry->link) : NULL;
}

/* A handle the driver gave: a new one for object, or one more time the one it gave before. Books lock held. */
static void add_handle(uint64_t handle, uint64_t object) {
  struct gs_entry *known = gs_book_find(GS_BOOK_HANDLE, handle);
  if (known)
    known->count++;
  else
    gs_book_add(&(struct gs_entry){
        .key = handle, .kind = GS_BOOK_HANDLE, .ordinal = GS_NO_DEVICE, .link = object, .count = 1});
  struct gs_entry *held = gs_book_find(GS_BOOK_OBJECT, known ? known->link : object);
  if (held)
    held->count++;
}

static void add_object(uint64_t handle, int ordinal, uint64_t bytes) {
  uint64_t number = __atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
  gs_book_lock();
  gs_book_add(&(struct gs_entry){.key = number, .kind = GS_BOOK_OBJECT, .ordinal = ordinal, .bytes = bytes});
  add_handle(handle, number);
  gs_book_unlock();
}

CUresult gs_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                        unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemCreate(handle, size, prop, flags) : result;
  bool device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  int ordinal = device ? gs_device_ordinal(prop->location.id) : GS_NO_DEVICE;
  if (ordinal == GS_NO_DEVICE)
    return gs_real.cuMemCreate(handle, size, prop, flags); /* host memory, or nothing the driver accepts */
  if (!gs_book_room(2) || gs_reserve(ordinal, size) < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemCreate(handle, size, prop, flags);
  if (result == CUDA_SUCCESS)
    add_object(*handle, ordinal, size);
  else
    gs_give_back(ordinal, size);
  return result;
}

CUresult gs_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                           CUmemAllocationHandleType shHandleType) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemImportFromShareableHandle(handle, osHandle, shHandleType) : result;
  if (!gs_book_room(2))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
  if (result != CUDA_SUCCESS)
    return result;
  gs_book_lock();
  bool known = gs_book_find(GS_BOOK_HANDLE, *handle) != NULL;
  if (known)
    add_handle(*handle, 0);
  gs_book_unlock();
  if (!known)
    add_object(*handle, GS_NO_DEVICE, 0); /* the exporter pays */
  return result;
}

CUresult gs_cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemRelease(handle) : result;
  /* withdrawn before the driver is asked: the number may be given to another thread at once */
  struct gs_entry entry, *known;
  gs_book_lock();
  if ((known = gs_book_find(GS_BOOK_HANDLE, handle))) {
    entry = *known;
    if (--known->count == 0)
      gs_book_remove(known);
  }
  gs_book_unlock();
  result = gs_real.cuMemRelease(handle);
  if (!known)
    return result;
  int ordinal = GS_NO_DEVICE;
  uint64_t bytes = 0;
  gs_book_lock();
  struct gs_entry *object = gs_book_find(GS_BOOK_OBJECT, entry.link);
  if (result == CUDA_SUCCESS && object)
    bytes = drop(object, &ordinal);
  else if (result != CUDA_SUCCESS && (known = gs_book_find(GS_BOOK_HANDLE, handle)))
    known->count++;
  else if (result != CUDA_SUCCESS)
    gs_book_add(&(struct gs_entry){
        .key = handle, .kind = GS_BOOK_HANDLE, .ordinal = GS_NO_DEVICE, .link = entry.link, .count = 1});
  gs_book_unlock();
  gs_give_back(ordinal, bytes);
  return result;
}

CUresult gs_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemMap(ptr, size, offset, handle, flags) : result;
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemMap(ptr, size, offset, handle, flags);
  if (result != CUDA_SUCCESS)
    return result;
  gs_book_lock();
  struct gs_entry *object = object_of(handle);
  if (object) {
    object->count++;
    gs_book_add(&(struct gs_entry){
        .key = ptr, .kind = GS_BOOK_MAPPING, .ordinal = GS_NO_DEVICE, .bytes = size, .link = object->key});
  }
  gs_book_unlock();
  return result;
}

/* A mapping inside [from, to), or NULL. Programs unmap what they mapped, so the first look nearly always finds it. */
static struct gs_entry *mapping_in(uint64_t from, uint64_t to) {
  struct gs_entry *entry = gs_book_find(GS_BOOK_MAPPING, from);
  uint32_t at = 0;
  if (!entry)
    while ((entry = gs_book_next(GS_BOOK_MAPPING, &at)) && !(entry->key >= from && entry->key < to))
      ;
  return entry;
}

CUresult gs_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemUnmap(ptr, size) : result;
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_book_lock(); /* held over the driver's call: the addresses can be mapped again as soon as it returns */
  result = gs_real.cuMemUnmap(ptr, size);
  for (uint64_t from = ptr; result == CUDA_SUCCESS && from < ptr + size;) {
    struct gs_entry *mapping = mapping_in(from, ptr + size);
    if (!mapping)
      break;
    uint64_t number = mapping->link;
    if (mapping->key == from)
      from += mapping->bytes;
    gs_book_remove(mapping);
    struct gs_entry *object = gs_book_find(GS_BOOK_OBJECT, number);
    int ordinal = GS_NO_DEVICE;
    uint64_t bytes = object ? drop(object, &ordinal) : 0;
    if (ordinal != GS_NO_DEVICE)
      freed[ordinal] += bytes;
  }
  gs_book_unlock();
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    gs_give_back(ordinal, freed[ordinal]);
  return result;
}

CUresult gs_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemRetainAllocationHandle(handle, addr) : result;
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemRetainAllocationHandle(handle, addr);
  if (result != CUDA_SUCCESS)
    return result;
  gs_book_lock();
  struct gs_entry *mapping = gs_book_find(GS_BOOK_MAPPING, (uintptr_t)addr);
  uint32_t at = 0;
  while (!mapping && (mapping = gs_book_next(GS_BOOK_MAPPING, &at)))
    if ((uintptr_t)addr - mapping->key >= mapping->bytes)
      mapping = NULL;
    else
      break;
  if (mapping)
    add_handle(*handle, mapping->link);
  gs_book_unlock();
  return result;
}
