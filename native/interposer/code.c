/* Programs. A module's code and variables take memory of its context; a library's of each context it is used in, from the first
 * use on. How much is read from the image (gs_image.h) and reserved before the driver is asked: the driver may load lazily and
 * then has less of it for a while. It goes back when the program is unloaded, or with its context. Nothing here waits for a
 * lease: loading may wait for the device, and the device for nobody. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "books.h"
#include "collectives.h"
#include "device.h"
#include "gs_image.h"
#include "os.h"
#include "timing.h"

enum { IMAGE_ROUND = 4096 };

static uint64_t rounded(uint64_t bytes) { return (bytes + IMAGE_ROUND - 1) / IMAGE_ROUND * IMAGE_ROUND; }

static unsigned capability_here(void) {
  int ordinal = gs_current_device();
  return ordinal == GS_NO_DEVICE ? 0 : gs_device_capability(ordinal);
}

/* False: there is no memory to look at the file in. What cannot be opened or is no file the driver refuses by itself. */
static bool file_bytes(const char *path, unsigned capability, uint64_t *bytes, bool *wrong) {
  int saved = errno, fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  struct stat file;
  void *image = NULL;
  *bytes = 0;
  *wrong = false;
  if (fd >= 0 && gs_fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0)
    image = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (image && image != MAP_FAILED) {
    *bytes = gs_image_bytes(image, (size_t)file.st_size, capability);
    *wrong = gs_image_wrong(image, (size_t)file.st_size);
    munmap(image, (size_t)file.st_size);
  }
  if (fd >= 0)
    close(fd);
  errno = saved;
  return image != MAP_FAILED;
}

/* ---- modules ------------------------------------------------------------------------------------------------------------ */

/* A module in the making. */
struct loading {
  CUcontext context; /* NULL: nothing is charged */
  int ordinal;
  uint64_t bytes;
  bool refused; /* there is no room, and it is the driver's to say what else is wrong */
};

/* wrong: the driver refuses it, however much room there is. */
static CUresult begin(struct loading *loading, const CUmodule *module, uint64_t bytes, bool wrong) {
  *loading = (struct loading){.ordinal = gs_current_device(), .bytes = rounded(bytes)};
  if (!module || bytes == 0 || loading->ordinal == GS_NO_DEVICE ||
      gs_real.cuCtxGetCurrent(&loading->context) != CUDA_SUCCESS || !loading->context)
    return CUDA_SUCCESS; /* the driver's to refuse */
  loading->context = gs_context_owner(loading->context);
  CUresult result = gs_book_room(1) ? gs_code_take(loading->context, loading->ordinal, loading->bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS || !wrong)
    return result;
  loading->context = NULL;
  loading->refused = true;
  return CUDA_SUCCESS;
}

static CUresult end(const struct loading *loading, CUresult result, CUmodule *module) {
  if (loading->refused && result == CUDA_SUCCESS) {
    gs_real.cuModuleUnload(*module); /* this driver takes what others do not */
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!loading->context)
    return result;
  if (result != CUDA_SUCCESS)
    gs_code_give(loading->context, loading->bytes);
  else
    gs_book_put(&(struct gs_entry){.key = (uintptr_t)*module,
                                   .kind = GS_BOOK_MODULE,
                                   .ordinal = GS_NO_DEVICE,
                                   .link = loading->bytes,
                                   .context = loading->context});
  return result;
}

CUresult gs_cuModuleLoad(CUmodule *module, const char *fname) {
  struct loading loading;
  CUresult result;
  uint64_t bytes;
  bool wrong;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuModuleLoad(module, fname) : result;
  if (!file_bytes(fname, capability_here(), &bytes, &wrong))
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = begin(&loading, module, bytes, wrong);
  return result == CUDA_SUCCESS ? end(&loading, gs_real.cuModuleLoad(module, fname), module) : result;
}

CUresult gs_cuModuleLoadData(CUmodule *module, const void *image) {
  struct loading loading;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuModuleLoadData(module, image) : result;
  result = begin(&loading, module, gs_image_bytes(image, SIZE_MAX, capability_here()), gs_image_wrong(image, SIZE_MAX));
  return result == CUDA_SUCCESS ? end(&loading, gs_real.cuModuleLoadData(module, image), module) : result;
}

CUresult gs_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                               void **optionValues) {
  struct loading loading;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuModuleLoadDataEx(module, image, numOptions, options, optionValues) : result;
  bool wrong = (numOptions > 0 && (!options || !optionValues)) || gs_image_wrong(image, SIZE_MAX);
  result = begin(&loading, module, gs_image_bytes(image, SIZE_MAX, capability_here()), wrong);
  if (result != CUDA_SUCCESS)
    return result;
  return end(&loading, gs_real.cuModuleLoadDataEx(module, image, numOptions, options, optionValues), module);
}

CUresult gs_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
  struct loading loading;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuModuleLoadFatBinary(module, fatCubin) : result;
  result = begin(&loading, module, gs_image_bytes(fatCubin, SIZE_MAX, capability_here()), gs_image_wrong(fatCubin, SIZE_MAX));
  return result == CUDA_SUCCESS ? end(&loading, gs_real.cuModuleLoadFatBinary(module, fatCubin), module) : result;
}

/* Handles of functions may come back as others'. */
static void functions_gone(void) {
  gs_kernels_forget();
  gs_functions_changed();
}

CUresult gs_cuModuleUnload(CUmodule hmod) {
  CUresult result;
  struct gs_entry entry;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuModuleUnload(hmod) : result;
  bool ours = gs_book_take(GS_BOOK_MODULE, (uintptr_t)hmod, &entry); /* before the handle can be another's */
  result = gs_real.cuModuleUnload(hmod);
  if (ours && result == CUDA_SUCCESS)
    gs_code_give(entry.context, entry.link);
  else if (ours)
    gs_book_put(&entry);
  if (result == CUDA_SUCCESS) {
    gs_collectives_gone(hmod);
    functions_gone();
  }
  return result;
}

/* ---- libraries ---------------------------------------------------------------------------------------------------------- */

static CUresult end_library(CUresult result, const CUlibrary *library, uint64_t bytes) {
  if (result == CUDA_SUCCESS && bytes > 0)
    gs_book_put(&(struct gs_entry){
        .key = (uintptr_t)*library, .kind = GS_BOOK_LIBRARY, .ordinal = GS_NO_DEVICE, .link = rounded(bytes)});
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
  uint64_t bytes = joined && library ? gs_image_bytes(code, SIZE_MAX, gs_common_capability()) : 0;
  return end_library(gs_real.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                               libraryOptionValues, numLibraryOptions),
                     library, bytes);
}

CUresult gs_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
                                  unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  uint64_t bytes = 0;
  bool wrong;
  if (joined && (!gs_book_room(1) || (library && !file_bytes(fileName, gs_common_capability(), &bytes, &wrong))))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return end_library(gs_real.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                                                   libraryOptionValues, numLibraryOptions),
                     library, bytes);
}

static uint64_t placed_key(uint64_t library, CUcontext context) {
  return (library ^ (uint64_t)(uintptr_t)context << 20) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
}

/* The library is about to be used in context. *placed: it was not there before. */
static CUresult place(uint64_t library, CUcontext context, int ordinal, bool *placed) {
  struct gs_entry fresh = {.key = placed_key(library, context),
                           .kind = GS_BOOK_PLACED,
                           .ordinal = GS_NO_DEVICE,
                           .link = library,
                           .context = context};
  *placed = false;
  if (!gs_book_room(1))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_LIBRARY, library);
  uint64_t bytes = known ? known->link : 0;
  bool there = !known || gs_book_find(GS_BOOK_PLACED, fresh.key);
  if (!there)
    gs_book_add(&fresh);
  gs_book_unlock();
  if (there)
    return CUDA_SUCCESS;
  CUresult result = gs_code_take(context, ordinal, bytes);
  *placed = result == CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    gs_book_take(GS_BOOK_PLACED, fresh.key, &fresh);
  return result;
}

static void take_away(uint64_t library, CUcontext context, uint64_t bytes) {
  struct gs_entry gone;
  if (gs_book_take(GS_BOOK_PLACED, placed_key(library, context), &gone))
    gs_code_give(context, bytes);
}

static uint64_t library_of(uint64_t kernel) {
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_KERNEL, kernel);
  uint64_t library = known ? known->link : 0;
  gs_book_unlock();
  return library;
}

static uint64_t library_bytes(uint64_t library) {
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_LIBRARY, library);
  uint64_t bytes = known ? known->link : 0;
  gs_book_unlock();
  return bytes;
}

CUresult gs_kernel_placed(CUfunction kernel, CUcontext context, int ordinal, bool *of_library) {
  uint64_t library = library_of((uintptr_t)kernel);
  bool placed;
  *of_library = library != 0;
  return library ? place(library, context, ordinal, &placed) : CUDA_SUCCESS;
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

/* Around a call that uses a library in the current context. */
struct use {
  uint64_t library;
  CUcontext context;
  bool placed;
};

static CUresult begin_use(struct use *use, uint64_t library) {
  *use = (struct use){.library = library};
  int ordinal = gs_current_device();
  if (!library || ordinal == GS_NO_DEVICE || gs_real.cuCtxGetCurrent(&use->context) != CUDA_SUCCESS || !use->context)
    return CUDA_SUCCESS;
  use->context = gs_context_owner(use->context);
  return place(library, use->context, ordinal, &use->placed);
}

static CUresult end_use(const struct use *use, CUresult result) {
  if (use->placed && result != CUDA_SUCCESS)
    take_away(use->library, use->context, library_bytes(use->library));
  return result;
}

CUresult gs_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
  struct use use;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuKernelGetFunction(pFunc, kernel) : result;
  result = begin_use(&use, library_of((uintptr_t)kernel));
  if (result == CUDA_SUCCESS)
    result = end_use(&use, gs_real.cuKernelGetFunction(pFunc, kernel));
  if (result == CUDA_SUCCESS)
    gs_collective_same(*pFunc, kernel, (const void *)(uintptr_t)use.library);
  return result;
}

CUresult gs_cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
  struct use use;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuLibraryGetModule(pMod, library) : result;
  result = begin_use(&use, (uintptr_t)library);
  return result == CUDA_SUCCESS ? end_use(&use, gs_real.cuLibraryGetModule(pMod, library)) : result;
}

CUresult gs_cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
  struct use use;
  CUresult result;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuLibraryGetGlobal(dptr, bytes, library, name) : result;
  result = begin_use(&use, (uintptr_t)library);
  return result == CUDA_SUCCESS ? end_use(&use, gs_real.cuLibraryGetGlobal(dptr, bytes, library, name)) : result;
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

/* The context of one place the library is in, taken out of the books; NULL: it is nowhere. */
static CUcontext next_place(uint64_t library) {
  uint32_t at = 0;
  CUcontext context = NULL;
  struct gs_entry *entry;
  gs_book_lock();
  while ((entry = gs_book_next(GS_BOOK_PLACED, &at)))
    if (entry->link == library) {
      context = entry->context;
      gs_book_remove(entry);
      break;
    }
  gs_book_unlock();
  return context;
}

CUresult gs_cuLibraryUnload(CUlibrary library) {
  CUresult result;
  struct gs_entry entry;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuLibraryUnload(library) : result;
  bool ours = gs_book_take(GS_BOOK_LIBRARY, (uintptr_t)library, &entry); /* before the handle can be another's */
  result = gs_real.cuLibraryUnload(library);
  if (result != CUDA_SUCCESS) {
    if (ours)
      gs_book_put(&entry);
    return result;
  }
  for (CUcontext context; ours && (context = next_place(entry.key));)
    gs_code_give(context, entry.link);
  gs_book_drop_link(GS_BOOK_KERNEL, (uintptr_t)library);
  gs_collectives_gone(library);
  functions_gone();
  return result;
}
