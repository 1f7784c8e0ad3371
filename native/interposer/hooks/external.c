/* External memory. What this process exported itself (cuMemExportToShareableHandle) lives as long as the import, and as what
 * is mapped from it; memory of others is charged to them. */
#include "hooks.h"
#include "interposer/memory/exports.h"
#include "interposer/memory/handles.h"
#include "interposer/os/descriptor.h"
#include "interposer/process/greens.h"

CUresult gs_cuImportExternalMemory(CUexternalMemory *extMem_out,
                                   const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuImportExternalMemory(extMem_out, memHandleDesc) : result;
  if (!gs_use_begin(&use, GS_MAKES_HANDLE | GS_MAKES_BINDING, 0, 0, 0))
    return CUDA_ERROR_OUT_OF_MEMORY;
  /* looked at before the driver closes it */
  bool is_file = memHandleDesc && memHandleDesc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  uint64_t name = is_file ? gs_descriptor_file(memHandleDesc->handle.fd) : 0;
  gs_import_begin(&use, name);
  result = gs_real.cuImportExternalMemory(extMem_out, memHandleDesc);
  gs_import_end(&use, name, result == CUDA_SUCCESS ? (uintptr_t)*extMem_out : 0);
  gs_use_end(&use);
  return result;
}

CUresult gs_cuDestroyExternalMemory(CUexternalMemory extMem) {
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuDestroyExternalMemory(extMem) : result;
  uint64_t leaving = gs_handle_leaves((uintptr_t)extMem);
  result = gs_real.cuDestroyExternalMemory(extMem);
  gs_handle_left((uintptr_t)extMem, leaving, result == CUDA_SUCCESS);
  gs_descriptors_settle(); /* the driver closes the descriptor */
  return result;
}

static bool begin(struct gs_use *use, CUexternalMemory from) {
  bool room = gs_use_begin(use, GS_MAKES_MAPPING, (uintptr_t)from, 0, 0);
  if (room)
    use->context = gs_owner_current();
  return room;
}

CUresult gs_cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                            const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuExternalMemoryGetMappedBuffer(devPtr, extMem, bufferDesc) : result;
  if (!begin(&use, extMem))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuExternalMemoryGetMappedBuffer(devPtr, extMem, bufferDesc);
  if (result == CUDA_SUCCESS)
    gs_map_end(&use, *devPtr, bufferDesc->size, true);
  gs_use_end(&use);
  return result;
}

CUresult gs_cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory extMem,
                                                    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *mipmapDesc) {
  CUresult result;
  struct gs_use use;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuExternalMemoryGetMappedMipmappedArray(mipmap, extMem, mipmapDesc)
                                  : result;
  if (!begin(&use, extMem))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = gs_real.cuExternalMemoryGetMappedMipmappedArray(mipmap, extMem, mipmapDesc);
  if (result == CUDA_SUCCESS)
    gs_map_end(&use, (uintptr_t)*mipmap, 1, true);
  gs_use_end(&use);
  return result;
}
