/* Virtual memory management: physical memory lives until its last handle, its last mapping and its last binding to a
 * multicast object are gone, in any order. Each piece is represented by an object, to which those refer. A multicast
 * object is one too, without bytes: when it ends, the memory bound to it is released. */
#include "hooks.h"
#include "interposer/memory/books.h"
#include "interposer/memory/reserve.h"
#include "interposer/process/device.h"
#include "interposer/process/elsewhere.h"

static uint64_t objects; /* numbers given out */

/* ---- with the lock of the objects' tables held ------------------------------------------------------------------- */

static struct gs_object *object(uint64_t number) { return gs_table_find(&gs_books()->objects, number); }

/* device < 0: of any. */
static struct gs_binding *binding_in(uint64_t multicast, CUdevice device, uint64_t from, uint64_t to) {
  struct gs_binding *binding;
  uint32_t at = 0;
  while ((binding = gs_table_next(&gs_books()->bindings, &at)))
    if (binding->multicast == multicast && (device < 0 || binding->device == device) && binding->offset >= from &&
        binding->offset < to)
      return binding;
  return NULL;
}

static void unbind(struct gs_binding *binding, uint64_t *freed);

/* Removes one holder. The last one gives the bytes back, to freed[ordinal], and ends the object. */
static void drop(struct gs_object *held, uint64_t *freed) {
  if (!held || --held->holders > 0)
    return;
  struct gs_object gone = *held;
  struct gs_binding *binding;
  gs_table_remove(&gs_books()->objects, held);
  if (gone.ordinal != GS_NO_DEVICE)
    freed[gone.ordinal] += gone.bytes;
  while (gone.multicast && (binding = binding_in(gone.number, -1, 0, UINT64_MAX)))
    unbind(binding, freed); /* no multicast object is bound to another: one level */
}

static void unbind(struct gs_binding *binding, uint64_t *freed) {
  uint64_t memory = binding->memory;
  gs_table_remove(&gs_books()->bindings, binding);
  drop(object(memory), freed);
}

static struct gs_object *object_of(uint64_t handle) {
  const struct gs_handle *known = gs_table_find(&gs_books()->handles, handle);
  return known ? object(known->object) : NULL;
}

/* The driver returned a handle: a new one for the object, or one that it returned before. */
static void add_handle(uint64_t handle, uint64_t of) {
  struct gs_handle *known = gs_table_find(&gs_books()->handles, handle);
  struct gs_object *held = object(known ? known->object : of);
  if (known)
    known->releases++;
  else
    gs_table_add(&gs_books()->handles, &(struct gs_handle){handle, of, 1});
  if (held)
    held->holders++;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void lock(void) { gs_table_lock(&gs_books()->objects); }
static void unlock(void) { gs_table_unlock(&gs_books()->objects); }

static bool room_for_object(void) {
  return gs_table_room(&gs_books()->objects, 1) && gs_table_room(&gs_books()->handles, 1);
}

static void give_back(const uint64_t *freed) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    gs_give_back(ordinal, freed[ordinal]);
}

/* The first handle of a new object. */
static void add_object(uint64_t handle, int ordinal, uint64_t bytes, bool multicast) {
  uint64_t number = __atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
  lock();
  gs_table_add(&gs_books()->objects,
               &(struct gs_object){.number = number, .bytes = bytes, .ordinal = ordinal, .multicast = multicast});
  add_handle(handle, number);
  unlock();
}

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
    return gs_real.cuMemCreate(handle, size, prop, flags); /* host memory, or a request that the driver refuses */
  if (!room_for_object())
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (gs_reserve(ordinal, size) < 0)
    return refuse(CUDA_ERROR_OUT_OF_MEMORY, handle, size, prop, flags);
  result = gs_real.cuMemCreate(handle, size, prop, flags);
  if (result == CUDA_SUCCESS)
    add_object(*handle, ordinal, size, false);
  else
    gs_give_back(ordinal, size);
  return result;
}

CUresult gs_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                           CUmemAllocationHandleType shHandleType) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemImportFromShareableHandle(handle, osHandle, shHandleType) : result;
  if (!room_for_object())
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
  if (result != CUDA_SUCCESS)
    return result;
  lock();
  bool known = gs_table_find(&gs_books()->handles, *handle) != NULL;
  if (known)
    add_handle(*handle, 0);
  unlock();
  if (!known)
    add_object(*handle, GS_NO_DEVICE, 0, true); /* charged to the exporter; its device cannot be found out */
  return result;
}

CUresult gs_cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemRelease(handle) : result;
  /* removed before the driver is called: the handle may be reused by another thread at once */
  struct gs_table *handles = &gs_books()->handles;
  uint64_t of = 0, freed[GS_MAX_DEVICES] = {0};
  lock();
  struct gs_handle *known = gs_table_find(handles, handle);
  bool ours = known != NULL;
  if (ours) {
    of = known->object;
    if (--known->releases == 0)
      gs_table_remove(handles, known);
  }
  unlock();
  result = gs_real.cuMemRelease(handle);
  if (!ours)
    return result;
  lock();
  if (result == CUDA_SUCCESS)
    drop(object(of), freed);
  else if ((known = gs_table_find(handles, handle)))
    known->releases++;
  else
    gs_table_add(handles, &(struct gs_handle){handle, of, 1});
  unlock();
  give_back(freed);
  return result;
}

CUresult gs_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemMap(ptr, size, offset, handle, flags) : result;
  struct gs_table *mappings = &gs_books()->mappings;
  if (!gs_table_room(mappings, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemMap(ptr, size, offset, handle, flags);
  if (result != CUDA_SUCCESS)
    return result;
  lock();
  struct gs_object *mapped = object_of(handle);
  if (mapped) {
    mapped->holders++;
    gs_table_add(mappings, &(struct gs_mapping){.address = ptr, .bytes = size, .object = mapped->number});
  }
  unlock();
  return result;
}

/* A mapping inside [from, to) of this call, or NULL. Programs unmap the ranges that they mapped, so the first lookup
 * nearly always finds it. Called with the lock held. */
static struct gs_mapping *mapping_in(uint64_t call, uint64_t from, uint64_t to) {
  const struct gs_table *mappings = &gs_books()->mappings;
  struct gs_mapping *mapping = gs_table_find(mappings, from);
  uint32_t at = 0;
  if (!mapping || mapping->call != call)
    while ((mapping = gs_table_next(mappings, &at)) &&
           !(mapping->address >= from && mapping->address < to && mapping->call == call))
      ;
  return mapping;
}

/* Assigns the mappings in [from, to) from the call `was` to another call. */
static void turn_mappings(uint64_t from, uint64_t to, uint64_t was, uint64_t becomes) {
  struct gs_mapping *mapping;
  lock();
  for (uint64_t at = from; at < to && (mapping = mapping_in(was, at, to));) {
    if (mapping->address == at)
      at += mapping->bytes;
    mapping->call = becomes;
  }
  unlock();
}

/* Removes the mappings of the call and releases what they held. */
static void end_mappings(uint64_t from, uint64_t to, uint64_t call) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_mapping *mapping;
  lock();
  for (uint64_t at = from; at < to && (mapping = mapping_in(call, at, to));) {
    struct gs_mapping gone = *mapping;
    if (gone.address == at)
      at += gone.bytes;
    gs_table_remove(&gs_books()->mappings, mapping);
    drop(object(gone.object), freed);
  }
  unlock();
  give_back(freed);
}

/* The driver may wait for work that in turn waits for the program, so the lock of the books cannot be held during the
 * call. The addresses can be mapped again as soon as the driver has unmapped them, so the mappings are marked before.
 * What they hold stays charged. */
CUresult gs_cuMemUnmap(CUdeviceptr ptr, size_t size) {
  static uint64_t calls;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemUnmap(ptr, size) : result;
  uint64_t call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  turn_mappings(ptr, ptr + size, 0, call);
  result = gs_real.cuMemUnmap(ptr, size);
  if (result == CUDA_SUCCESS)
    end_mappings(ptr, ptr + size, call);
  else
    turn_mappings(ptr, ptr + size, call, 0);
  return result;
}

/* The mapping that contains address, or NULL. Called with the lock held. */
static struct gs_mapping *mapping_of(uint64_t address) {
  const struct gs_table *mappings = &gs_books()->mappings;
  struct gs_mapping *mapping = gs_table_find(mappings, address);
  uint32_t at = 0;
  if (!mapping || mapping->call)
    while ((mapping = gs_table_next(mappings, &at)) && (mapping->call || address - mapping->address >= mapping->bytes))
      ;
  return mapping;
}

CUresult gs_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMemRetainAllocationHandle(handle, addr) : result;
  if (!gs_table_room(&gs_books()->handles, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMemRetainAllocationHandle(handle, addr);
  if (result != CUDA_SUCCESS)
    return result;
  lock();
  const struct gs_mapping *mapping = mapping_of((uintptr_t)addr);
  if (mapping)
    add_handle(*handle, mapping->object);
  unlock();
  return result;
}

/* ---- multicast objects ------------------------------------------------------------------------------------------- */

CUresult gs_cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMulticastCreate(mcHandle, prop) : result;
  if (!room_for_object())
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastCreate(mcHandle, prop);
  if (result == CUDA_SUCCESS)
    add_object(*mcHandle, GS_NO_DEVICE, 0, true);
  return result;
}

/* Memory that is not charged need not be tracked. Called with the lock held. */
static void bind(uint64_t multicast, uint64_t offset, struct gs_object *memory) {
  const struct gs_object *to = object_of(multicast);
  if (!to || !memory || memory->ordinal == GS_NO_DEVICE)
    return;
  memory->holders++;
  gs_table_add(&gs_books()->bindings, &(struct gs_binding){.offset = offset,
                                                           .multicast = to->number,
                                                           .memory = memory->number,
                                                           .device = gs_device_of(memory->ordinal)});
}

CUresult gs_cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  if (joined && !gs_table_room(&gs_books()->bindings, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags);
  if (!joined || result != CUDA_SUCCESS)
    return result;
  lock();
  bind(mcHandle, mcOffset, object_of(memHandle));
  unlock();
  return result;
}

CUresult gs_cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                                unsigned long long flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  if (joined && !gs_table_room(&gs_books()->bindings, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
  if (!joined || result != CUDA_SUCCESS)
    return result;
  lock();
  const struct gs_mapping *mapping =
      mapping_of(memptr); /* none: memory of a pool, which is charged as long as the pool has it */
  if (mapping)
    bind(mcHandle, mcOffset, object(mapping->object));
  unlock();
  return result;
}

CUresult gs_cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
  CUresult result;
  struct gs_binding *binding;
  struct gs_object *of;
  uint64_t freed[GS_MAX_DEVICES] = {0};
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuMulticastUnbind(mcHandle, dev, mcOffset, size) : result;
  result = gs_real.cuMulticastUnbind(mcHandle, dev, mcOffset, size);
  if (result != CUDA_SUCCESS)
    return result;
  lock();
  while ((of = object_of(mcHandle)) && (binding = binding_in(of->number, dev, mcOffset, mcOffset + size)))
    unbind(binding, freed);
  unlock();
  give_back(freed);
  return result;
}
