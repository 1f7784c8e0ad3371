/* Modules and libraries. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim/program/images/image.h"
#include "sim/program/images/jit_options.h"

/* A CUmodule or a CUlibrary. A library's module is created on request and shares its image. */
struct sim_module {
  uint32_t magic;
  struct sim_image *image;
  struct sim_ctx *ctx;           /* NULL: a library */
  struct sim_module *of_library; /* in a library: its CUmodule, if requested; in that module: the library */
};

static struct sim_kind module_kind = {sizeof(struct sim_module), 0x6d6f6475, NULL};
static struct sim_kind library_kind = {sizeof(struct sim_module), 0x6c696272, NULL};

/* INVALID_VALUE if `needed` is NULL: an argument that the function cannot do without. */
static CUresult get(const void *handle, const struct sim_kind *kind, const void *needed, struct sim_module **module) {
  *module = (struct sim_module *)(uintptr_t)handle;
  if (*module == NULL || (*module)->magic != kind->magic)
    return CUDA_ERROR_INVALID_HANDLE;
  return needed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult make(struct sim_kind *kind, struct sim_image *image, struct sim_ctx *ctx, struct sim_module **module) {
  sim_lock();
  *module = sim_handle_new(kind);
  sim_unlock();
  if (*module == NULL) {
    sim_image_free(image);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  (*module)->image = image;
  (*module)->ctx = ctx;
  image->owner = *module;
  return CUDA_SUCCESS;
}

static void drop(struct sim_kind *kind, struct sim_module *module) {
  sim_lock();
  sim_handle_free(kind, module);
  sim_unlock();
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* log: as in sim_image_load */
static CUresult load(CUmodule *module, const void *image, char log[SIM_PTX_LOG]) {
  struct sim_ctx *ctx;
  struct sim_image *loaded;
  struct sim_module *made;
  CUresult result = sim_ctx_need(&ctx);
  *log = '\0';
  if (result)
    return result;
  if (module == NULL || image == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = sim_image_load(image, sim_ctx_owner(ctx), &loaded, log);
  if (result == CUDA_SUCCESS)
    result = make(&module_kind, loaded, sim_ctx_owner(ctx), &made);
  if (result == CUDA_SUCCESS)
    *module = (CUmodule)made;
  return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  char log[SIM_PTX_LOG];
  return load(module, image, log);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues) {
  char log[SIM_PTX_LOG];
  struct sim_jit_options jit;
  CUresult result = sim_jit_options_read(numOptions, options, optionValues, &jit);
  if (result)
    return result;
  result = load(module, image, log);
  sim_jit_options_answer(&jit, log);
  return result;
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) { return cuModuleLoadData(module, fatCubin); }

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
  char log[SIM_PTX_LOG];
  struct sim_ctx *ctx;
  struct sim_image *loaded;
  struct sim_module *made;
  CUresult result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (module == NULL || fname == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = sim_image_load_file(fname, sim_ctx_owner(ctx), &loaded, log);
  if (result == CUDA_SUCCESS)
    result = make(&module_kind, loaded, sim_ctx_owner(ctx), &made);
  if (result == CUDA_SUCCESS)
    *module = (CUmodule)made;
  return result;
}

CUresult cuModuleUnload(CUmodule hmod) {
  struct sim_module *module;
  CUresult result = get(hmod, &module_kind, hmod, &module);
  if (result)
    return result;
  if (module->of_library)
    return CUDA_ERROR_NOT_PERMITTED; /* unloaded with its library */
  if (module->ctx->alive)
    sim_ctx_wait(module->ctx);
  sim_image_free(module->image);
  drop(&module_kind, module);
  return CUDA_SUCCESS;
}

static CUresult function_of(struct sim_module *module, const char *name, struct sim_function **function) {
  if (name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *function = sim_image_function(module->image, module->ctx, name);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
  struct sim_module *module;
  struct sim_function *function;
  CUresult result = get(hmod, &module_kind, hfunc, &module);
  if (result)
    return result;
  result = function_of(module, name, &function);
  if (result == CUDA_SUCCESS)
    *hfunc = (CUfunction)function;
  return result;
}

static unsigned count_functions(const struct sim_module *module) {
  unsigned count = 0;
  for (const struct sim_function *function = module->image->functions; function; function = function->next)
    count++;
  return count;
}

static CUresult enumerate(struct sim_module *module, void **handles, unsigned most) {
  unsigned n = 0;
  for (struct sim_function *function = module->image->functions; function && n < most; function = function->next)
    handles[n++] = function;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod) {
  struct sim_module *module;
  CUresult result = get(mod, &module_kind, count, &module);
  if (result)
    return result;
  *count = count_functions(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod) {
  struct sim_module *module;
  CUresult result = get(mod, &module_kind, functions, &module);
  return result ? result : enumerate(module, (void **)functions, numFunctions);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
  struct sim_module *module;
  CUresult result = get(hmod, &module_kind, name, &module);
  if (result)
    return result;
  return sim_image_global(module->image, module->ctx, name, dptr, bytes);
}

static CUresult reference_of(CUmodule handle, const char *name, bool surface, struct sim_reference **reference) {
  struct sim_module *module;
  CUresult result = get(handle, &module_kind, name, &module);
  if (result)
    return result;
  *reference = sim_image_reference(module->image, name, surface);
  return *reference ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetTexRef(CUtexref *pTexRef, CUmodule hmod, const char *name) {
  struct sim_reference *reference;
  CUresult result = reference_of(hmod, name, false, &reference);
  if (result == CUDA_SUCCESS && pTexRef == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *pTexRef = (CUtexref)reference;
  return result;
}

CUresult cuModuleGetSurfRef(CUsurfref *pSurfRef, CUmodule hmod, const char *name) {
  struct sim_reference *reference;
  CUresult result = reference_of(hmod, name, true, &reference);
  if (result == CUDA_SUCCESS && pSurfRef == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *pSurfRef = (CUsurfref)reference;
  return result;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  if (mode == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *mode = 2; /* CU_MODULE_LAZY_LOADING */
  return CUDA_SUCCESS;
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */

static CUresult library_make(CUlibrary *library, struct sim_image *image) {
  struct sim_module *made;
  CUresult result = make(&library_kind, image, NULL, &made);
  if (result == CUDA_SUCCESS)
    *library = (CUlibrary)made;
  return result;
}

static CUresult library_load(CUlibrary *library, const void *from, bool is_path, unsigned count, CUjit_option *options,
                             void **values) {
  char log[SIM_PTX_LOG];
  struct sim_image *image;
  struct sim_jit_options jit;
  CUresult result = sim_jit_options_read(count, options, values, &jit);
  if (result)
    return result;
  if (library == NULL || from == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = is_path ? sim_image_load_file(from, NULL, &image, log) : sim_image_load(from, NULL, &image, log);
  sim_jit_options_answer(&jit, log);
  return result ? result : library_make(library, image);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
  (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
  return library_load(library, code, false, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                               void **libraryOptionValues, unsigned int numLibraryOptions) {
  (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
  return library_load(library, fileName, true, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult cuLibraryUnload(CUlibrary handle) {
  struct sim_module *library;
  CUresult result = get(handle, &library_kind, handle, &library);
  if (result)
    return result;
  for (CUdevice device = 0; sim_device_valid(device); device++)
    sim_device_wait(device);
  if (library->of_library)
    drop(&module_kind, library->of_library);
  sim_image_free(library->image);
  drop(&library_kind, library);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary handle, const char *name) {
  struct sim_module *library;
  struct sim_function *function;
  CUresult result = get(handle, &library_kind, pKernel, &library);
  if (result)
    return result;
  result = function_of(library, name, &function);
  if (result == CUDA_SUCCESS)
    *pKernel = (CUkernel)function;
  return result;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
  struct sim_module *library;
  CUresult result = get(lib, &library_kind, count, &library);
  if (result)
    return result;
  *count = library->image->functions ? sim_image_parts(library->image) : 0;
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
  struct sim_module *library;
  CUresult result = get(lib, &library_kind, kernels, &library);
  return result ? result : enumerate(library, (void **)kernels, numKernels);
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary handle) {
  struct sim_ctx *ctx;
  struct sim_module *library;
  CUresult result = get(handle, &library_kind, handle, &library);
  if (result == CUDA_SUCCESS)
    result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (pMod == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  ctx = sim_ctx_owner(ctx);
  result = sim_image_place(library->image, ctx, NULL);
  if (result)
    return result;
  sim_lock();
  if (library->of_library == NULL && (library->of_library = sim_handle_new(&module_kind)) != NULL) {
    library->of_library->image = library->image;
    library->of_library->ctx = ctx;
    library->of_library->of_library = library;
  }
  sim_unlock();
  *pMod = (CUmodule)library->of_library;
  return library->of_library ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary handle, const char *name) {
  struct sim_ctx *ctx;
  struct sim_module *library;
  CUresult result = get(handle, &library_kind, handle, &library);
  if (result == CUDA_SUCCESS)
    result = sim_ctx_need(&ctx);
  if (result)
    return result;
  if (name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  ctx = sim_ctx_owner(ctx);
  result = sim_image_place(library->image, ctx, library->image);
  return result ? result : sim_image_global(library->image, ctx, name, dptr, bytes);
}

/* Managed variables and unified function pointers require compiled code, which this device does not run. */
CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary handle, const char *name) {
  (void)dptr, (void)bytes;
  struct sim_module *library;
  CUresult result = get(handle, &library_kind, name, &library);
  return result ? result : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetUnifiedFunction(void **fptr, CUlibrary handle, const char *symbol) {
  struct sim_module *library;
  CUresult result = get(handle, &library_kind, fptr ? symbol : NULL, &library);
  return result ? result : CUDA_ERROR_NOT_FOUND;
}

/* ---- from functions to modules and libraries --------------------------------------------------------------------- */

CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel) {
  struct sim_function *function;
  CUresult result = sim_function_get(kernel, &function);
  if (result)
    return result;
  if (pLib == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pLib = (CUlibrary)function->image->owner;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
  struct sim_function *function;
  CUresult result = sim_function_get(hfunc, &function);
  if (result)
    return result;
  if (hmod == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (function->ctx == NULL)
    return cuLibraryGetModule(hmod, (CUlibrary)function->image->owner);
  *hmod = (CUmodule)function->image->owner;
  return CUDA_SUCCESS;
}
