/* Programs: libraries. They belong to no context. In each that they are used in, their variables take memory from the
 * first use of anything on, and their code from the first use of each kernel on where the driver loads them one by one,
 * of all of them at once where it does not. What a kernel takes the driver says to nobody: it counts as an equal part
 * of what the library's image says (gs_image.h). Reserved before the driver is asked, given back when the library is
 * unloaded, or with the context. */
#include "interposer/memory/books.h"
#include "interposer/hooks/modules.h"
#include "interposer/time/collectives.h"
#include "interposer/process/device.h"
#include "image/gs_image.h"
#include "interposer/time/timing.h"

enum { ALL = 0, LAZY_LOADING = 2 /* CU_MODULE_LAZY_LOADING */ };

static CUresult end_library(CUresult result, const CUlibrary *library, struct gs_image_size size) {
  if (result == CUDA_SUCCESS && size.code + size.data > 0)
    gs_book_put(&(struct gs_entry){.key = (uintptr_t)*library,
                                   .kind = GS_BOOK_LIBRARY,
                                   .ordinal = GS_NO_DEVICE,
                                   .link = size.code,
                                   .cap = size.data});
  return result;
}

CUresult gs_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                              unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                              unsigned int numLibraryOptions) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  if (joined && !gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  /* read before the driver is: it need not stay after */
  struct gs_image_size size = {0};
  if (joined && library)
    size = gs_image_size(code, SIZE_MAX, gs_common_capability());
  return end_library(gs_real.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions,
                                               libraryOptions, libraryOptionValues, numLibraryOptions),
                     library, size);
}

CUresult gs_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                  void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                  void **libraryOptionValues, unsigned int numLibraryOptions) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  struct gs_image_size size = {0};
  bool wrong;
  if (joined && (!gs_book_room(1) || (library && !gs_file_size(fileName, gs_common_capability(), &size, &wrong))))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return end_library(gs_real.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
                                                   libraryOptions, libraryOptionValues, numLibraryOptions),
                     library, size);
}

/* Of a library in a context: the code of a kernel, all code (ALL), or its variables (then part is the library itself). */
static uint64_t placed_key(uint64_t library, uint64_t part, CUcontext context) {
  uint64_t both = library ^ part * 0xd6e8feb86659fd93u;                     /* an odd number with bits everywhere */
  return (both ^ (uint64_t)(uintptr_t)context << 20) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
}

/* Into how many equal parts the library is taken to come: its kernels where the driver loads one by one, which it says
 * is so unless the program has asked for all at once. Asked when the first of them is used: the driver has to look into
 * the library then. */
static void count_parts(uint64_t library) {
  CUmoduleLoadingMode mode;
  unsigned int count = 0;
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_LIBRARY, library);
  bool unknown = known && known->count == 0;
  gs_book_unlock();
  if (!unknown)
    return;
  bool one_by_one = gs_real_has(GS_INDEX_cuModuleGetLoadingMode) &&
                    gs_real.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == LAZY_LOADING &&
                    gs_real_has(GS_INDEX_cuLibraryGetKernelCount) &&
                    gs_real.cuLibraryGetKernelCount(&count, (CUlibrary)(uintptr_t)library) == CUDA_SUCCESS;
  gs_book_lock();
  if ((known = gs_book_find(GS_BOOK_LIBRARY, library)))
    known->count = one_by_one && count > 0 ? count : 1;
  gs_book_unlock();
}

/* The part alone. *placed: it was not there before. */
static CUresult place_one(uint64_t library, uint64_t part, CUcontext context, int ordinal, bool *placed) {
  struct gs_entry fresh = {.key = placed_key(library, part, context),
                           .kind = GS_BOOK_PLACED,
                           .ordinal = GS_NO_DEVICE,
                           .link = library,
                           .context = context};
  bool code = part != library;
  *placed = false;
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (code)
    count_parts(library);
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_LIBRARY, library);
  bool there = !known || gs_book_find(GS_BOOK_PLACED, fresh.key) ||
               (code && gs_book_find(GS_BOOK_PLACED, placed_key(library, ALL, context)));
  if (!there) {
    uint32_t parts = part != ALL && known->count > 0 ? known->count : 1;
    fresh.cap = code ? (known->link + parts - 1) / parts : known->cap;
    gs_book_add(&fresh);
  }
  gs_book_unlock();
  if (there)
    return CUDA_SUCCESS;
  CUresult result = gs_code_take(context, ordinal, fresh.cap);
  *placed = result == CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    gs_book_take(GS_BOOK_PLACED, fresh.key, &fresh);
  return result;
}

static void take_away(uint64_t library, uint64_t part, CUcontext context) {
  struct gs_entry gone;
  if (gs_book_take(GS_BOOK_PLACED, placed_key(library, part, context), &gone))
    gs_code_give(context, gone.cap);
}

/* Which parts a use has brought into a context that had them not. */
struct brought {
  bool variables, code;
};

static void undo(uint64_t library, uint64_t part, CUcontext context, struct brought brought) {
  if (brought.code)
    take_away(library, part, context);
  if (brought.variables)
    take_away(library, library, context);
}

/* The part is about to be used in context, and with it the library's variables. */
static CUresult place(uint64_t library, uint64_t part, CUcontext context, int ordinal, struct brought *brought) {
  *brought = (struct brought){0};
  CUresult result = place_one(library, library, context, ordinal, &brought->variables);
  if (result == CUDA_SUCCESS && part != library)
    result = place_one(library, part, context, ordinal, &brought->code);
  if (result != CUDA_SUCCESS)
    undo(library, part, context, *brought);
  return result;
}

static uint64_t library_of(uint64_t kernel) {
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_KERNEL, kernel);
  uint64_t library = known ? known->link : 0;
  gs_book_unlock();
  return library;
}

CUresult gs_kernel_placed(CUfunction kernel, CUcontext context, int ordinal, bool *of_library) {
  uint64_t library = library_of((uintptr_t)kernel);
  struct brought brought;
  *of_library = library != 0;
  return library ? place(library, (uintptr_t)kernel, context, ordinal, &brought) : CUDA_SUCCESS;
}

CUcontext gs_function_context(CUfunction function) {
  CUmodule module;
  CUcontext context = NULL;
  if (library_of((uintptr_t)function) || !gs_real_has(GS_INDEX_cuFuncGetModule) ||
      gs_real.cuFuncGetModule(&module, function) != CUDA_SUCCESS)
    return NULL;
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_MODULE, (uintptr_t)module);
  if (known)
    context = known->context;
  gs_book_unlock();
  return context;
}

/* Around a call that uses a part of a library in the current context. */
struct use {
  uint64_t library, part;
  CUcontext context;
  struct brought brought;
};

static CUresult begin_use(struct use *use, uint64_t library, uint64_t part) {
  *use = (struct use){.library = library, .part = part};
  int ordinal = gs_current_device();
  if (!library || ordinal == GS_NO_DEVICE || gs_real.cuCtxGetCurrent(&use->context) != CUDA_SUCCESS || !use->context)
    return CUDA_SUCCESS;
  use->context = gs_context_owner(use->context);
  return place(library, part, use->context, ordinal, &use->brought);
}

static CUresult end_use(const struct use *use, CUresult result) {
  if (result != CUDA_SUCCESS)
    undo(use->library, use->part, use->context, use->brought);
  return result;
}

CUresult gs_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
  struct use use;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuKernelGetFunction(pFunc, kernel) : result;
  result = begin_use(&use, library_of((uintptr_t)kernel), (uintptr_t)kernel);
  if (result == CUDA_SUCCESS)
    result = end_use(&use, gs_real.cuKernelGetFunction(pFunc, kernel));
  if (result == CUDA_SUCCESS)
    gs_collective_same(*pFunc, kernel, (const void *)(uintptr_t)use.library);
  return result;
}

/* All of it: its functions come as they are asked for, unseen. */
CUresult gs_do_library_use(const struct gs_call *call, CUlibrary library, bool variables) {
  struct use use;
  CUresult result = begin_use(&use, (uintptr_t)library, variables ? (uintptr_t)library : ALL);
  return result == CUDA_SUCCESS ? end_use(&use, gs_call(call)) : result;
}

static void kernel_known(CUkernel kernel, CUlibrary library) {
  if (!kernel || !gs_book_room(1))
    return;
  gs_book_lock();
  if (!gs_book_find(GS_BOOK_KERNEL, (uintptr_t)kernel))
    gs_book_add(&(struct gs_entry){
        .key = (uintptr_t)kernel, .kind = GS_BOOK_KERNEL, .ordinal = GS_NO_DEVICE, .link = (uintptr_t)library});
  gs_book_unlock();
}

CUresult gs_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuLibraryGetKernel(pKernel, library, name);
  if (joined && result == CUDA_SUCCESS) {
    kernel_known(*pKernel, library);
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
      kernel_known(kernels[i], lib);
      if (gs_real.cuKernelGetName(&name, kernels[i]) == CUDA_SUCCESS)
        gs_collective_found(kernels[i], name, lib, NULL);
    }
  return result;
}

/* One place that a part of the library is in, taken out of the books; false: it is nowhere. */
static bool next_place(uint64_t library, struct gs_entry *out) {
  uint32_t at = 0;
  struct gs_entry *entry;
  bool found = false;
  gs_book_lock();
  while (!found && (entry = gs_book_next(GS_BOOK_PLACED, &at)))
    if ((found = entry->link == library)) {
      *out = *entry;
      gs_book_remove(entry);
    }
  gs_book_unlock();
  return found;
}

CUresult gs_cuLibraryUnload(CUlibrary library) {
  CUresult result;
  struct gs_entry entry, where;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuLibraryUnload(library) : result;
  bool ours = gs_book_take(GS_BOOK_LIBRARY, (uintptr_t)library, &entry); /* before the handle can be another's */
  result = gs_real.cuLibraryUnload(library);
  if (result != CUDA_SUCCESS) {
    if (ours)
      gs_book_put(&entry);
    return result;
  }
  while (ours && next_place(entry.key, &where))
    gs_code_give(where.context, where.cap);
  gs_book_drop_link(GS_BOOK_KERNEL, (uintptr_t)library);
  gs_collectives_gone(library);
  gs_functions_gone();
  return result;
}
