#include "interposer/memory/implicit/library_code.h"

#include "interposer/memory/books/books.h"
#include "interposer/memory/implicit/implicit.h"
#include "interposer/memory/books/life.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"

/* Key of a part of a library (its number) in a context: the code of a kernel, all code (GS_LIBRARY_ALL), or the
 * library's variables (then part is the number). */
static uint64_t placed_key(uint64_t library, uint64_t part, CUcontext context) {
  /* an odd constant with well-distributed bits */
  uint64_t both = library ^ part * 0xd6e8feb86659fd93u;
  return (both ^ (uint64_t)(uintptr_t)context << 20) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
}

/* The number of equal parts in which the library's code is assumed to be loaded: its number of kernels if the driver
 * loads kernels one by one, which it reports unless the program requested eager loading. Queried at the first use,
 * because the driver then has to read the library. */
static void count_parts(uint64_t library) {
  CUmoduleLoadingMode mode;
  unsigned int count = 0;
  struct gs_table *libraries = &gs_books()->libraries;
  struct gs_library now;
  if (!gs_life_copy(libraries, library, &now) || now.parts > 0)
    return;
  bool one_by_one = gs_real_has(GS_INDEX_cuModuleGetLoadingMode) &&
                    gs_real.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING &&
                    gs_real_has(GS_INDEX_cuLibraryGetKernelCount) &&
                    gs_real.cuLibraryGetKernelCount(&count, (CUlibrary)(uintptr_t)library) == CUDA_SUCCESS;
  gs_table_lock(libraries);
  struct gs_library *known = gs_life_find(libraries, library);
  if (known)
    known->parts = one_by_one && count > 0 ? count : 1;
  gs_table_unlock(libraries);
}

/* Whether a part of the library (code, or else the variables) still has to be placed; sets its record. False: it is
 * there already, or there is no such library. With the lock held. */
static bool is_missing(uint64_t library, bool code, uint64_t part, CUcontext context, struct gs_placed *fresh) {
  const struct gs_table *placed = &gs_books()->placed;
  const struct gs_library *known = gs_life_find(&gs_books()->libraries, library);
  if (!known)
    return false;
  uint64_t number = known->living.made;
  uint32_t parts = part != GS_LIBRARY_ALL && known->parts > 0 ? known->parts : 1;
  *fresh = (struct gs_placed){.key = placed_key(number, code ? part : number, context),
                              .library = number,
                              .bytes = code ? (known->code + parts - 1) / parts : known->data,
                              .context = gs_context_owner(context)};
  return !gs_table_find(placed, fresh->key) &&
         !(code && gs_table_find(placed, placed_key(number, GS_LIBRARY_ALL, context)));
}

/* *was: the part was not there before. The bytes are reserved first and the library is looked up again after that,
 * since it may be unloaded meanwhile, which gives back only what is in the books. */
static CUresult place_one(uint64_t library, bool code, uint64_t part, CUcontext context, int ordinal,
                          struct gs_brought *brought, bool *was) {
  struct gs_books *books = gs_books();
  struct gs_placed fresh, still;
  *was = false;
  if (!gs_table_room(&books->placed, 1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (code)
    count_parts(library);
  gs_table_lock(&books->libraries);
  bool missing = is_missing(library, code, part, context, &fresh);
  gs_table_unlock(&books->libraries);
  CUresult result = missing ? gs_code_take(context, ordinal, fresh.bytes) : CUDA_SUCCESS;
  if (!missing || result != CUDA_SUCCESS)
    return result;
  gs_table_lock(&books->libraries);
  missing = is_missing(library, code, part, context, &still) && still.key == fresh.key;
  if (missing)
    gs_table_add(&books->placed, &fresh);
  gs_table_unlock(&books->libraries);
  if (!missing)
    gs_code_give(context, fresh.bytes);
  brought->number = fresh.library;
  *was = missing;
  return CUDA_SUCCESS;
}

static void take_away(uint64_t number, uint64_t part, CUcontext context) {
  struct gs_placed gone;
  if (gs_table_take(&gs_books()->placed, placed_key(number, part, context), &gone))
    gs_code_give(context, gone.bytes);
}

void gs_library_undo(uint64_t part, CUcontext context, struct gs_brought brought) {
  if (brought.code)
    take_away(brought.number, part, context);
  if (brought.variables)
    take_away(brought.number, brought.number, context);
}

CUresult gs_library_place(uint64_t library, uint64_t part, CUcontext context, int ordinal, struct gs_brought *brought) {
  *brought = (struct gs_brought){0};
  CUresult result = place_one(library, false, library, context, ordinal, brought, &brought->variables);
  if (result == CUDA_SUCCESS && part != library)
    result = place_one(library, true, part, context, ordinal, brought, &brought->code);
  if (result != CUDA_SUCCESS)
    gs_library_undo(part, context, *brought);
  return result;
}

/* The newest record with the handle counts. */
uint64_t gs_library_of(uint64_t kernel) {
  const struct gs_kernel *each = NULL, *newest = NULL;
  const struct gs_table *kernels = &gs_books()->kernels;
  gs_table_lock(&gs_books()->kernels);
  while ((each = gs_table_same(kernels, kernel, each)))
    if (!newest || each->number > newest->number)
      newest = each;
  uint64_t library = newest ? newest->library : 0;
  gs_table_unlock(&gs_books()->kernels);
  return library;
}

CUresult gs_kernel_placed(CUfunction kernel, CUcontext context, int ordinal, bool *of_library) {
  uint64_t library = gs_library_of((uintptr_t)kernel);
  struct gs_brought brought;
  *of_library = library != 0;
  return library ? gs_library_place(library, (uintptr_t)kernel, context, ordinal, &brought) : CUDA_SUCCESS;
}

CUcontext gs_function_context(CUfunction function) {
  CUmodule module;
  struct gs_module known;
  if (gs_library_of((uintptr_t)function) || !gs_real_has(GS_INDEX_cuFuncGetModule) ||
      gs_real.cuFuncGetModule(&module, function) != CUDA_SUCCESS)
    return NULL;
  return gs_life_copy(&gs_books()->modules, (uintptr_t)module, &known) ? known.context : NULL;
}

void gs_library_kernel(CUkernel kernel, CUlibrary library) {
  struct gs_table *kernels = &gs_books()->kernels;
  const struct gs_kernel *each = NULL;
  if (!kernel || !gs_table_room(kernels, 1))
    return;
  gs_table_lock(kernels);
  const struct gs_library *of = gs_life_find(&gs_books()->libraries, (uintptr_t)library);
  uint64_t number = of ? of->living.made : 0;
  while ((each = gs_table_same(kernels, (uintptr_t)kernel, each)) && each->number != number)
    ;
  if (!each)
    gs_table_add(kernels, &(struct gs_kernel){(uintptr_t)kernel, (uintptr_t)library, number});
  gs_table_unlock(kernels);
}

/* Removes one placed part of the library of this number from the books; false: there is none. */
static bool next_place(uint64_t number, struct gs_placed *out) {
  struct gs_table *placed = &gs_books()->placed;
  uint32_t at = 0;
  struct gs_placed *one;
  bool found = false;
  gs_table_lock(placed);
  while (!found && (one = gs_table_next(placed, &at)))
    if ((found = one->library == number)) {
      *out = *one;
      gs_table_remove(placed, one);
    }
  gs_table_unlock(placed);
  return found;
}

void gs_library_gone(uint64_t number) {
  struct gs_placed where;
  while (next_place(number, &where))
    gs_code_give(where.context, where.bytes);
}
