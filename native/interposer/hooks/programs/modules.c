/* Programs: modules. A module's code and variables take memory in its context. The size is read from the image
 * (gs_image.h) and reserved before the driver is called; the driver may load lazily and then uses less for a while. The
 * memory is given back when the module is unloaded, or with its context. Nothing here waits for a lease: loading may
 * have to wait for work on the device. Libraries are in libraries.c. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hooks.h"
#include "interposer/memory/books/books.h"
#include "interposer/memory/implicit/collectives.h"
#include "interposer/memory/implicit/implicit.h"
#include "interposer/memory/implicit/kernels.h"
#include "interposer/memory/books/life.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/process/answers.h"
#include "interposer/process/greens.h"
#include "interposer/time/streams/functions.h"
#include "interposer/hooks/programs/modules.h"
#include "interposer/process/device.h"
#include "interposer/process/refused.h"
#include "image/gs_image.h"
#include "interposer/os/system.h"

enum { IMAGE_ROUND = 4096 };

static uint64_t rounded(uint64_t bytes) { return (bytes + IMAGE_ROUND - 1) / IMAGE_ROUND * IMAGE_ROUND; }

static unsigned capability_here(void) {
  int ordinal = gs_current_device();
  return ordinal == GS_NO_DEVICE ? 0 : gs_device_capability(ordinal);
}

bool gs_file_size(const char *path, unsigned capability, struct gs_image_size *size, bool *wrong) {
  int saved = errno, fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  struct stat file;
  void *image = NULL;
  *size = (struct gs_image_size){0};
  *wrong = false;
  if (fd >= 0 && gs_fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0)
    image = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (image && image != MAP_FAILED) {
    *size = gs_image_size(image, (size_t)file.st_size, capability);
    *wrong = gs_image_wrong(image, (size_t)file.st_size);
    munmap(image, (size_t)file.st_size);
  }
  if (fd >= 0)
    close(fd);
  errno = saved;
  return image != MAP_FAILED;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* A module that is being loaded. */
struct loading {
  CUcontext context; /* NULL: nothing is charged */
  int ordinal;
  uint64_t bytes;
  struct gs_maker maker;
  bool refused; /* it does not fit; the driver reports any other error */
};

/* wrong: the driver refuses it, however much memory is free. */
static CUresult begin(struct loading *loading, const CUmodule *module, struct gs_image_size size, bool wrong) {
  uint64_t bytes = size.code + size.data;
  *loading = (struct loading){.ordinal = gs_current_device(), .bytes = rounded(bytes)};
  if (!module || loading->ordinal == GS_NO_DEVICE || gs_real.cuCtxGetCurrent(&loading->context) != CUDA_SUCCESS ||
      !loading->context)
    return CUDA_SUCCESS; /* the driver refuses the call */
  loading->context = gs_context_owner(loading->context);
  CUresult result = gs_table_room(&gs_books()->modules, 1)
                        ? gs_code_take(loading->context, loading->ordinal, loading->bytes)
                        : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS)
    gs_maker_begin(&loading->maker, &gs_books()->modules_made, loading->context);
  if (result == CUDA_SUCCESS || !wrong)
    return result;
  loading->context = NULL;
  loading->refused = true;
  return CUDA_SUCCESS;
}

static CUresult end(const struct loading *loading, CUresult result, CUmodule *module) {
  if (loading->refused && result == CUDA_SUCCESS) {
    gs_real.cuModuleUnload(*module); /* this driver accepts what others refuse */
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!loading->context)
    return result;
  if (result == CUDA_SUCCESS)
    gs_life_put(
        &loading->maker, &gs_books()->modules,
        &(struct gs_module){.living.key = (uintptr_t)*module, .bytes = loading->bytes, .context = loading->context});
  else if (!gs_maker_late(&loading->maker))
    gs_code_give(loading->context, loading->bytes);
  gs_maker_end(&loading->maker);
  return result;
}

static CUresult load(const struct gs_call *call, CUmodule *module, struct gs_image_size size, bool wrong) {
  struct loading loading;
  struct gs_patience patience = {0};
  CUresult result;
  do {
    result = begin(&loading, module, size, wrong);
    if (result != CUDA_SUCCESS)
      return result;
    result = end(&loading, gs_call(call), module);
  } while (loading.context && gs_driver_again(result, loading.ordinal, loading.bytes, &patience));
  return gs_refused(result);
}

CUresult gs_do_module_load_file(const struct gs_call *call, CUmodule *module, const char *path) {
  struct gs_image_size size;
  bool wrong;
  if (!gs_file_size(path, capability_here(), &size, &wrong))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return load(call, module, size, wrong);
}

CUresult gs_do_module_load(const struct gs_call *call, CUmodule *module, const void *image, bool wrong) {
  wrong = wrong || gs_image_wrong(image, SIZE_MAX);
  return load(call, module, gs_image_size(image, SIZE_MAX, capability_here()), wrong);
}

void gs_functions_gone(void) {
  gs_kernels_forget();
  gs_functions_changed();
}

static void module_gone(const void *record, void *with) {
  const struct gs_module *module = record;
  (void)with;
  gs_code_give(module->context, module->bytes);
}

CUresult gs_cuModuleUnload(CUmodule hmod) {
  const struct gs_family modules = {&gs_books()->modules, &gs_books()->modules_made, NULL};
  CUresult result;
  struct gs_leaving leaving;
  struct gs_module module;
  if (!gs_enter(&result))
    return result == CUDA_SUCCESS ? gs_real.cuModuleUnload(hmod) : result;
  gs_answered(CUDA_SUCCESS);
  gs_life_leave(&modules, &leaving, (uintptr_t)hmod, &module);
  result = gs_real.cuModuleUnload(hmod);
  gs_life_left(&modules, &leaving, result == CUDA_SUCCESS, module_gone, NULL);
  if (result == CUDA_SUCCESS) {
    gs_collectives_gone(hmod);
    gs_functions_gone();
  }
  return result;
}

/* ---- look-ups of functions --------------------------------------------------------------------------------------- */

static CUcontext context_of(CUmodule module) {
  struct gs_module known;
  return gs_life_copy(&gs_books()->modules, (uintptr_t)module, &known) ? known.context : NULL;
}

CUresult gs_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  gs_answered(CUDA_SUCCESS);
  result = gs_real.cuModuleGetFunction(hfunc, hmod, name);
  if (joined && result == CUDA_SUCCESS)
    gs_collective_found(*hfunc, name, hmod, context_of(hmod));
  return result;
}

CUresult gs_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod) {
  CUresult result;
  const char *name;
  unsigned int count = 0;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuModuleEnumerateFunctions(functions, numFunctions, mod);
  if (!joined || result != CUDA_SUCCESS || gs_real.cuModuleGetFunctionCount(&count, mod) != CUDA_SUCCESS)
    return result;
  for (unsigned int i = 0; i < count && i < numFunctions; i++)
    if (gs_real.cuFuncGetName(&name, functions[i]) == CUDA_SUCCESS)
      gs_collective_found(functions[i], name, mod, context_of(mod));
  return result;
}
