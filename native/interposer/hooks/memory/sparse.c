/* Physical memory that is mapped into a sparse array lives as long as a tile refers to it. Tiles are mapped and
 * unmapped in the order of a stream, and a program may map many, so they are not tracked one by one: an array holds all
 * memory that was ever mapped into it until the array or its context ends, like an import of all of it. */
#include "interposer/hooks/memory/sparse.h"

#include "interposer/memory/physical/handles.h"
#include "interposer/memory/physical/mappings.h"
#include "interposer/process/greens.h"

static uint64_t array_of(const CUarrayMapInfo *info) {
  return info->resourceType == CU_RESOURCE_TYPE_ARRAY ? (uintptr_t)info->resource.array
                                                      : (uintptr_t)info->resource.mipmap;
}

static uint64_t handle_of(const CUarrayMapInfo *info) {
  return info->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? info->memHandle.memHandle : 0;
}

/* A mapping for an array, whose object holds what is mapped into it. Returns the mapping's number. */
static uint64_t add_holder(uint64_t array, CUcontext context, uint64_t *freed) {
  uint64_t number = gs_object_add(GS_NO_DEVICE, 0, GS_IMPORT), call = gs_next_call();
  gs_mapping_add(&(struct gs_mapping){array, 1, number, call, context});
  gs_object_drop(number, freed);
  return call;
}

bool gs_unbacked_room(void) {
  return gs_table_room(&gs_books()->objects, 1) && gs_table_room(&gs_books()->mappings, 1);
}

uint64_t gs_unbacked_made(uint64_t array, const struct gs_maker *maker) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, made = 0;
  struct gs_mapping *each = NULL;
  gs_objects_lock();
  while ((each = gs_table_same(&gs_books()->mappings, array, each)))
    if (each->made > maker->number) { /* a call that maps into the array came first */
      each->context = maker->context;
      made = each->made;
    }
  if (!made)
    made = add_holder(array, maker->context, freed);
  gs_objects_unlock(freed);
  return made;
}

static void bind_once(uint64_t holder, uint64_t object) {
  if (gs_object_find(object) && !gs_object_is_bound(holder, object))
    gs_object_bind(holder, object, NULL);
}

/* Makes the array hold the memory. An array that is not known is still being made, or was made before this process had
 * its grant: it is assumed to belong to the current context. Two are known if the call that destroyed one has not
 * returned. */
static void hold(const CUarrayMapInfo *info) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, handle = handle_of(info), array = array_of(info);
  CUcontext context = gs_owner_current();
  struct gs_handle *each = NULL;
  gs_objects_lock();
  if (context && gs_handle_next(handle, NULL) && !gs_table_find(&gs_books()->mappings, array))
    add_holder(array, context, freed);
  while (context && (each = gs_handle_next(handle, each)))
    for (struct gs_mapping *into = NULL; (into = gs_table_same(&gs_books()->mappings, array, into));)
      bind_once(into->object, each->object);
  gs_objects_unlock(freed);
}

/* The memory is held before the driver can map it, and stays held if the driver refuses. */
CUresult gs_before_map_array(struct gs_around_map_array *around, const CUarrayMapInfo *list, unsigned int count) {
  CUresult result = CUDA_SUCCESS;
  *around = (struct gs_around_map_array){0};
  if (!gs_enter(&result) || !list)
    return result;
  if (!gs_use_begin(&around->use, &(struct gs_underway){.does = GS_NAMES_MANY}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  around->list = list;
  around->count = count;
  for (unsigned i = 0; i < count; i++)
    if (handle_of(&list[i]))
      hold(&list[i]);
  return CUDA_SUCCESS;
}

/* Looks again, because an array that was still being made before the call may be known by now. */
CUresult gs_after_map_array(struct gs_around_map_array *around, CUresult result) {
  for (uint32_t i = 0; i < around->count && result == CUDA_SUCCESS; i++)
    if (handle_of(&around->list[i]))
      hold(&around->list[i]);
  if (around->list)
    gs_use_end(&around->use);
  return result;
}
