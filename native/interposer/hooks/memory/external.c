/* External memory. Memory that this process exported itself (cuMemExportToShareableHandle) lives as long as an import
 * of it, and as long as what is mapped from that; memory of other processes is charged to them. */
#include "hooks.h"
#include "interposer/hooks/memory/arrays.h"
#include "interposer/memory/physical/exports.h"
#include "interposer/memory/physical/handles.h"
#include "interposer/memory/books/life.h"
#include "interposer/os/files/descriptor.h"
#include "interposer/process/greens.h"

CUresult gs_cuImportExternalMemory(CUexternalMemory *extMem_out,
                                   const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuImportExternalMemory(extMem_out, memHandleDesc) : result;
  if (!gs_use_begin(&use, &(struct gs_underway){.does = GS_MAKES_HANDLE | GS_IMPORTS}))
    return CUDA_ERROR_OUT_OF_MEMORY;
  /* The driver gets a copy, as in cuMemImportFromShareableHandle. A descriptor that the driver has imported belongs to
   * it, and may be closed by it at any time. */
  bool is_file = memHandleDesc && memHandleDesc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC copied = is_file ? *memHandleDesc : (CUDA_EXTERNAL_MEMORY_HANDLE_DESC){0};
  if (is_file)
    copied.handle.fd = gs_descriptor_copy(memHandleDesc->handle.fd);
  gs_import_begin(&use, is_file ? gs_descriptor_file(copied.handle.fd) : 0);
  result = gs_real.cuImportExternalMemory(extMem_out, is_file ? &copied : memHandleDesc);
  gs_import_end(&use, result == CUDA_SUCCESS ? gs_external_key(*extMem_out) : 0);
  gs_use_end(&use);
  if (is_file)
    gs_descriptor_drop(result == CUDA_SUCCESS ? memHandleDesc->handle.fd : copied.handle.fd);
  return result;
}

CUresult gs_cuDestroyExternalMemory(CUexternalMemory extMem) {
  CUresult result;
  struct gs_release release;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuDestroyExternalMemory(extMem) : result;
  gs_handle_leaves(&release, gs_external_key(extMem));
  result = gs_real.cuDestroyExternalMemory(extMem);
  gs_handle_left(&release, result == CUDA_SUCCESS);
  gs_descriptors_settle(); /* the driver closes the descriptor */
  return result;
}

static bool begin(struct gs_use *use, CUexternalMemory from, struct gs_table *table) {
  bool room = gs_table_room(table, 1) &&
              gs_use_begin(use, &(struct gs_underway){.handle = gs_external_key(from), .does = GS_MAPS});
  if (room)
    use->context = gs_owner_current();
  return room;
}

CUresult gs_cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                            const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc) {
  CUresult result;
  struct gs_use use;
  struct gs_maker maker;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuExternalMemoryGetMappedBuffer(devPtr, extMem, bufferDesc) : result;
  if (!begin(&use, extMem, &gs_books()->pointers))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_maker_begin(&maker, &gs_books()->pointers_made, use.context);
  result = gs_real.cuExternalMemoryGetMappedBuffer(devPtr, extMem, bufferDesc);
  if (result == CUDA_SUCCESS) {
    uint64_t mapping = gs_object_mapped(&use, *devPtr, bufferDesc->size, false);
    gs_life_put(&maker, &gs_books()->pointers,
                &(struct gs_allocation){
                    .living.key = *devPtr, .context = use.context, .ordinal = GS_NO_DEVICE, .mapping = mapping});
  }
  gs_maker_end(&maker);
  gs_use_end(&use);
  return result;
}

CUresult gs_cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory extMem,
                                                    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *mipmapDesc) {
  CUresult result;
  struct gs_use use;
  struct gs_maker maker;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuExternalMemoryGetMappedMipmappedArray(mipmap, extMem, mipmapDesc)
                                  : result;
  if (!begin(&use, extMem, &gs_books()->arrays))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_array_begin(&maker, use.context);
  result = gs_real.cuExternalMemoryGetMappedMipmappedArray(mipmap, extMem, mipmapDesc);
  uint64_t mapping = result == CUDA_SUCCESS ? gs_object_mapped(&use, (uintptr_t)*mipmap, 1, false) : 0;
  gs_array_end(&maker, result == CUDA_SUCCESS ? *mipmap : NULL,
               &(struct gs_allocation){.ordinal = GS_NO_DEVICE, .mapping = mapping});
  gs_use_end(&use);
  return result;
}
