/* Programs: libraries. A library belongs to no context. In each context in which it is used, its variables take memory
 * from the first use of any part on. Its code takes memory from the first use of each kernel on if the driver loads
 * kernels one by one, else all code at once. The driver does not report the size of a kernel's code, so each kernel
 * counts as an equal part of the size in the library's image (gs_image.h). The memory is reserved before the driver is
 * called, and given back when the library is unloaded or with the context. */
#include "hooks.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/implicit/collectives.h"
#include "interposer/memory/implicit/implicit.h"
#include "interposer/memory/implicit/library_code.h"
#include "interposer/memory/books/life.h"
#include "interposer/process/answers.h"
#include "interposer/process/greens.h"
#include "interposer/hooks/programs/modules.h"
#include "interposer/process/device.h"
#include "image/gs_image.h"

static CUresult end_library(const struct gs_maker *maker, CUresult result, const CUlibrary *library,
                            struct gs_image_size size) {
  if (result == CUDA_SUCCESS)
    gs_life_put(maker, &gs_books()->libraries,
                &(struct gs_library){.living.key = (uintptr_t)*library, .code = size.code, .data = size.data});
  gs_maker_end(maker);
  return result;
}

CUresult gs_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                              unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                              unsigned int numLibraryOptions) {
  CUresult result;
  struct gs_maker maker;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  gs_answered(CUDA_SUCCESS);
  if (joined && !gs_table_room(&gs_books()->libraries, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  /* read before the driver's call, after which the image may be gone */
  struct gs_image_size size = {0};
  if (joined && library)
    size = gs_image_size(code, SIZE_MAX, gs_common_capability());
  gs_maker_begin(&maker, &gs_books()->libraries_made, NULL);
  result = gs_real.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                     libraryOptionValues, numLibraryOptions);
  return end_library(&maker, result, library, size);
}

CUresult gs_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                  void **libraryOptionValues, unsigned int numLibraryOptions) {
  CUresult result;
  struct gs_maker maker;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  gs_answered(CUDA_SUCCESS);
  struct gs_image_size size = {0};
  bool wrong;
  if (joined && (!gs_table_room(&gs_books()->libraries, 1) ||
                 (library && !gs_file_size(fileName, gs_common_capability(), &size, &wrong))))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_maker_begin(&maker, &gs_books()->libraries_made, NULL);
  result = gs_real.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                         libraryOptionValues, numLibraryOptions);
  return end_library(&maker, result, library, size);
}

/* Wraps a call that uses a part of a library in the current context. */
struct use {
  uint64_t library, part;
  CUcontext context;
  struct gs_brought brought;
};

static CUresult begin_use(struct use *use, uint64_t library, uint64_t part) {
  *use = (struct use){.library = library, .part = part};
  int ordinal = gs_current_device();
  if (!library || ordinal == GS_NO_DEVICE || gs_real.cuCtxGetCurrent(&use->context) != CUDA_SUCCESS || !use->context)
    return CUDA_SUCCESS;
  use->context = gs_context_owner(use->context);
  return gs_library_place(library, part, use->context, ordinal, &use->brought);
}

static CUresult end_use(const struct use *use, CUresult result) {
  if (result != CUDA_SUCCESS)
    gs_library_undo(use->part, use->context, use->brought);
  return result;
}

CUresult gs_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
  struct use use;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuKernelGetFunction(pFunc, kernel) : result;
  gs_answered(CUDA_SUCCESS);
  result = begin_use(&use, gs_library_of((uintptr_t)kernel), (uintptr_t)kernel);
  if (result == CUDA_SUCCESS)
    result = end_use(&use, gs_real.cuKernelGetFunction(pFunc, kernel));
  if (result == CUDA_SUCCESS)
    gs_collective_same(*pFunc, kernel, (const void *)(uintptr_t)use.library);
  return result;
}

/* A use of the whole library or of its variables. All code counts as loaded, because the program may then use functions
 * without further calls. */
CUresult gs_do_library_use(const struct gs_call *call, CUlibrary library, bool variables) {
  struct use use;
  CUresult result = begin_use(&use, (uintptr_t)library, variables ? (uintptr_t)library : GS_LIBRARY_ALL);
  return result == CUDA_SUCCESS ? end_use(&use, gs_call(call)) : result;
}

CUresult gs_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  gs_answered(CUDA_SUCCESS);
  result = gs_real.cuLibraryGetKernel(pKernel, library, name);
  if (joined && result == CUDA_SUCCESS) {
    gs_library_kernel(*pKernel, library);
    gs_collective_found(*pKernel, name, library, NULL);
  }
  return result;
}

CUresult gs_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
  CUresult result;
  unsigned int count = 0;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuLibraryEnumerateKernels(kernels, numKernels, lib);
  if (joined && result == CUDA_SUCCESS && gs_real.cuLibraryGetKernelCount(&count, lib) == CUDA_SUCCESS)
    for (unsigned int i = 0; i < count && i < numKernels; i++) {
      const char *name;
      gs_library_kernel(kernels[i], lib);
      if (gs_real.cuKernelGetName(&name, kernels[i]) == CUDA_SUCCESS)
        gs_collective_found(kernels[i], name, lib, NULL);
    }
  return result;
}

static bool is_of(const void *kernel, void *number) {
  return ((const struct gs_kernel *)kernel)->number == *(const uint64_t *)number;
}

static void gone(const void *record, void *with) {
  uint64_t number = ((const struct gs_library *)record)->living.made;
  (void)with;
  gs_library_gone(number);
  gs_table_drop(&gs_books()->kernels, is_of, &number);
}

CUresult gs_cuLibraryUnload(CUlibrary library) {
  const struct gs_family libraries = {&gs_books()->libraries, &gs_books()->libraries_made, NULL};
  CUresult result;
  struct gs_leaving leaving;
  struct gs_library known;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuLibraryUnload(library) : result;
  gs_answered(CUDA_SUCCESS);
  gs_life_leave(&libraries, &leaving, (uintptr_t)library, &known);
  result = gs_real.cuLibraryUnload(library);
  gs_life_left(&libraries, &leaving, result == CUDA_SUCCESS, gone, NULL);
  if (result != CUDA_SUCCESS)
    return result;
  gs_collectives_gone(library);
  gs_functions_gone();
  return result;
}
