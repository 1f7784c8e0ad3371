#include "interposer/memory/library_code.h"

#include "interposer/memory/books.h"
#include "interposer/memory/implicit.h"
#include "interposer/process/device.h"

/* Of a library in a context: the code of a kernel, all code (GS_LIBRARY_ALL), or its variables (then part is the library itself). */
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
                    gs_real.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING &&
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
               (code && gs_book_find(GS_BOOK_PLACED, placed_key(library, GS_LIBRARY_ALL, context)));
  if (!there) {
    uint32_t parts = part != GS_LIBRARY_ALL && known->count > 0 ? known->count : 1;
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

void gs_library_undo(uint64_t library, uint64_t part, CUcontext context, struct gs_brought brought) {
  if (brought.code)
    take_away(library, part, context);
  if (brought.variables)
    take_away(library, library, context);
}

/* The part is about to be used in context, and with it the library's variables. */
CUresult gs_library_place(uint64_t library, uint64_t part, CUcontext context, int ordinal, struct gs_brought *brought) {
  *brought = (struct gs_brought){0};
  CUresult result = place_one(library, library, context, ordinal, &brought->variables);
  if (result == CUDA_SUCCESS && part != library)
    result = place_one(library, part, context, ordinal, &brought->code);
  if (result != CUDA_SUCCESS)
    gs_library_undo(library, part, context, *brought);
  return result;
}

uint64_t gs_library_of(uint64_t kernel) {
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_KERNEL, kernel);
  uint64_t library = known ? known->link : 0;
  gs_book_unlock();
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
  CUcontext context = NULL;
  if (gs_library_of((uintptr_t)function) || !gs_real_has(GS_INDEX_cuFuncGetModule) ||
      gs_real.cuFuncGetModule(&module, function) != CUDA_SUCCESS)
    return NULL;
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_MODULE, (uintptr_t)module);
  if (known)
    context = known->context;
  gs_book_unlock();
  return context;
}

void gs_library_kernel(CUkernel kernel, CUlibrary library) {
  if (!kernel || !gs_book_room(1))
    return;
  gs_book_lock();
  if (!gs_book_find(GS_BOOK_KERNEL, (uintptr_t)kernel))
    gs_book_add(&(struct gs_entry){
        .key = (uintptr_t)kernel, .kind = GS_BOOK_KERNEL, .ordinal = GS_NO_DEVICE, .link = (uintptr_t)library});
  gs_book_unlock();
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

void gs_library_gone(uint64_t library) {
  struct gs_entry where;
  while (next_place(library, &where))
    gs_code_give(where.context, where.cap);
}
