/* Virtual memory management: physical memory lives until its last handle, its last mapping and its last place in a
 * multicast object are gone, in any order. Each piece is an object of ours, to which those link. A multicast object is
 * one too, without bytes: memory bound to it is let go when it is. */
#include "hooks.h"
#include "interposer/memory/books.h"
#include "interposer/memory/reserve.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"

static uint64_t objects; /* numbers given out */

enum { MULTICAST = 1 /* gs_entry.flags of an object: memory may be bound to it */ };

static struct gs_entry *binding_in(uint64_t multicast, CUdevice device, uint64_t from, uint64_t to) {
  struct gs_entry *entry;
  uint32_t at = 0;
  while ((entry = gs_book_next(GS_BOOK_BINDING, &at)))
    if (entry->cap == multicast && (device < 0 || entry->flags == (uint32_t)device) && entry->key >= from &&
        entry->key < to)
      return entry;
  return NULL;
}

/* One holder less. The last gives the bytes back, to freed[ordinal]. Books lock held; the entry may be gone after. */
static void drop(struct gs_entry *object, uint64_t *freed) {
  if (!object || --object->count > 0)
    return;
  struct gs_entry gone = *object, *binding;
  gs_book_remove(object);
  if (gone.ordinal != GS_NO_DEVICE)
    freed[gone.ordinal] += gone.bytes;
  while (gone.flags & MULTICAST && (binding = binding_in(gone.key, -1, 0, UINT64_MAX))) {
    uint64_t bound = binding->link;
    gs_book_remove(binding);
    drop(gs_book_find(GS_BOOK_OBJECT, bound), freed); /* no multicast object is bound to another: one level */
  }
}

static void give_back(const uint64_t *freed) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    gs_give_back(ordinal, freed[ordinal]);
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
    gs_book_add(
        &(struct gs_entry){.key = handle, .kind = GS_BOOK_HANDLE, .ordinal = GS_NO_DEVICE, .link = object, .count = 1});
  struct gs_entry *held = gs_book_find(GS_BOOK_OBJECT, known ? known->link : object);
  if (held)
    held->count++;
}

static void add_object(uint64_t handle, int ordinal, uint64_t bytes, uint32_t flags) {
  uint64_t number = __atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
  gs_book_lock();
  gs_book_add(
      &(struct gs_entry){.key = number, .kind = GS_BOOK_OBJECT, .ordinal = ordinal, .bytes = bytes, .flags = flags});
  add_handle(handle, number);
  gs_book_unlock();
}

/* Whether the driver would make it if there were room. What it refuses in any case gets its own answer, not ours. */
static bool plausible(const CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                      unsigned long long flags) {
  size_t step = 0;
  return handle && flags == 0 && gs_real.cuMemGetAllocationGranularity(&step, prop, 0 /* minimum */) == CUDA_SUCCESS &&
         step > 0 && size > 0 && size % step == 0;
}

/* It cannot be had: for our reason, or for the driver's where something else is wrong with it too. */
static CUresult refuse(CUresult reason, CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
  if (plausible(handle, size, prop, flags))
    return reason;
  CUresult result = gs_real.cuMemCreate(handle, size, prop, flags);
  if (result != CUDA_SUCCESS)
    return result;
  gs_real.cuMemRelease(*handle); /* this driver takes what others do not */
  return reason;
}

CUresult gs_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                        unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemCreate(handle, size, prop, flags) : result;
  bool device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (device && gs_elsewhere(prop->location.id))
    return refuse(gs_refuse_elsewhere(prop->location.id), handle, size, prop, flags);
  int ordinal = device ? gs_device_ordinal(prop->location.id) : GS_NO_DEVICE;
  if (ordinal == GS_NO_DEVICE)
    return gs_real.cuMemCreate(handle, size, prop, flags); /* host memory, or nothing the driver accepts */
  if (!gs_book_room(2))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (gs_reserve(ordinal, size) < 0)
    return refuse(CUDA_ERROR_OUT_OF_MEMORY, handle, size, prop, flags);
  result = gs_real.cuMemCreate(handle, size, prop, flags);
  if (result == CUDA_SUCCESS)
    add_object(*handle, ordinal, size, 0);
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
    add_object(*handle, GS_NO_DEVICE, 0, MULTICAST); /* the exporter pays; what it is of nobody says */
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
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_book_lock();
  if (result == CUDA_SUCCESS)
    drop(gs_book_find(GS_BOOK_OBJECT, entry.link), freed);
  else if ((known = gs_book_find(GS_BOOK_HANDLE, handle)))
    known->count++;
  else
    gs_book_add(&(struct gs_entry){
        .key = handle, .kind = GS_BOOK_HANDLE, .ordinal = GS_NO_DEVICE, .link = entry.link, .count = 1});
  gs_book_unlock();
  give_back(freed);
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

/* A mapping inside [from, to), or NULL; of those withdrawn one of this number. Programs unmap what they mapped, so the
 * first look nearly always finds it. */
static struct gs_entry *mapping_in(enum gs_book_kind kind, uint64_t number, uint64_t from, uint64_t to) {
  struct gs_entry *entry = gs_book_find(kind, from);
  uint32_t at = 0;
  if (!entry || entry->cap != number)
    while ((entry = gs_book_next(kind, &at)) && !(entry->key >= from && entry->key < to && entry->cap == number))
      ;
  return entry;
}

/* Mappings in [from, to) become of the other kind; or nothing (GS_BOOK_FREE), and what they held is let go of. Only
 * what has the number `was` is meant, and it gets `becomes`. */
static void turn_mappings(uint64_t from, uint64_t to, const enum gs_book_kind kinds[2], uint64_t was,
                          uint64_t becomes) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_entry *mapping;
  gs_book_lock();
  for (uint64_t at = from; at < to && (mapping = mapping_in(kinds[0], was, at, to));) {
    struct gs_entry turned = *mapping;
    if (turned.key == at)
      at += turned.bytes;
    gs_book_remove(mapping);
    turned.kind = kinds[1];
    turned.cap = becomes;
    if (kinds[1] == GS_BOOK_FREE)
      drop(gs_book_find(GS_BOOK_OBJECT, turned.link), freed);
    else
      gs_book_add(&turned);
  }
  gs_book_unlock();
  give_back(freed);
}

/* The driver may wait for work that may wait for the program, so the books' lock cannot be held meanwhile; and the
 * addresses can be mapped again as soon as it did it, so the mappings are withdrawn before. What they hold stays
 * charged. */
CUresult gs_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  static const enum gs_book_kind withdraw[] = {GS_BOOK_MAPPING, GS_BOOK_UNMAPPING},
                                 restore[] = {GS_BOOK_UNMAPPING, GS_BOOK_MAPPING},
                                 end[] = {GS_BOOK_UNMAPPING, GS_BOOK_FREE};
  static uint64_t calls;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemUnmap(ptr, size) : result;
  uint64_t call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  turn_mappings(ptr, ptr + size, withdraw, 0, call);
  result = gs_real.cuMemUnmap(ptr, size);
  turn_mappings(ptr, ptr + size, result == CUDA_SUCCESS ? end : restore, call, 0);
  return result;
}

/* The mapping that holds address, or NULL. */
static struct gs_entry *mapping_of(uint64_t address) {
  struct gs_entry *mapping = gs_book_find(GS_BOOK_MAPPING, address);
  uint32_t at = 0;
  while (!mapping && (mapping = gs_book_next(GS_BOOK_MAPPING, &at)))
    if (address - mapping->key >= mapping->bytes)
      mapping = NULL;
    else
      break;
  return mapping;
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
  struct gs_entry *mapping = mapping_of((uintptr_t)addr);
  if (mapping)
    add_handle(*handle, mapping->link);
  gs_book_unlock();
  return result;
}

/* ---- multicast objects ------------------------------------------------------------------------------------------- */

CUresult gs_cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMulticastCreate(mcHandle, prop) : result;
  if (!gs_book_room(2))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastCreate(mcHandle, prop);
  if (result == CUDA_SUCCESS)
    add_object(*mcHandle, GS_NO_DEVICE, 0, MULTICAST);
  return result;
}

/* Memory that nobody here pays for needs no watching. Books lock held. */
static void bind(uint64_t multicast, uint64_t offset, struct gs_entry *memory) {
  struct gs_entry *object = object_of(multicast);
  if (!object || !memory || memory->ordinal == GS_NO_DEVICE)
    return;
  memory->count++;
  gs_book_add(&(struct gs_entry){.key = offset,
                                 .kind = GS_BOOK_BINDING,
                                 .ordinal = GS_NO_DEVICE,
                                 .link = memory->key,
                                 .flags = (uint32_t)gs_device_of(memory->ordinal),
                                 .cap = object->key});
}

CUresult gs_cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  if (joined && !gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags);
  if (!joined || result != CUDA_SUCCESS)
    return result;
  gs_book_lock();
  bind(mcHandle, mcOffset, object_of(memHandle));
  gs_book_unlock();
  return result;
}

CUresult gs_cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  if (joined && !gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
  if (!joined || result != CUDA_SUCCESS)
    return result;
  gs_book_lock();
  struct gs_entry *mapping = mapping_of(memptr); /* none: a pool's, which is charged as long as the pool has it */
  if (mapping)
    bind(mcHandle, mcOffset, gs_book_find(GS_BOOK_OBJECT, mapping->link));
  gs_book_unlock();
  return result;
}

CUresult gs_cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
  CUresult result;
  struct gs_entry *binding, *object;
  uint64_t freed[GS_MAX_DEVICES] = {0};
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMulticastUnbind(mcHandle, dev, mcOffset, size) : result;
  result = gs_real.cuMulticastUnbind(mcHandle, dev, mcOffset, size);
  if (result != CUDA_SUCCESS)
    return result;
  gs_book_lock();
  object = object_of(mcHandle);
  while (object && (binding = binding_in(object->key, dev, mcOffset, mcOffset + size))) {
    uint64_t bound = binding->link;
    gs_book_remove(binding);
    drop(gs_book_find(GS_BOOK_OBJECT, bound), freed);
    object = object_of(mcHandle);
  }
  gs_book_unlock();
  give_back(freed);
  return result;
}
