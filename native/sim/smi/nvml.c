/* The library, loaded by name as nvidia-smi does, so that a preloaded one answers. */
#include <dlfcn.h>

#include "sim/smi/smi.h"

struct smi_nvml smi_nvml;

static nvmlReturn_t absent(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
static const char *no_text(nvmlReturn_t result) {
  (void)result;
  return "Unknown Error";
}

typedef void (*function)(void);

static function find(void *library, const char *name, function otherwise) {
  function found = (function)(uintptr_t)dlsym(library, name);
  return found ? found : otherwise;
}

enum smi_status smi_start(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == NULL) {
    printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display"
           " Driver is properly installed and present in your system.\nPlease also try adding directory that contains"
           " libnvidia-ml.so to your system PATH.\n");
    return SMI_NO_LIBRARY;
  }
#define FIND(name, parameters) \
  smi_nvml.name = (nvmlReturn_t(*) parameters)find(library, #name, (function)(uintptr_t)absent);
  SMI_NVML(FIND)
#undef FIND
  smi_nvml.nvmlErrorString =
      (const char *(*)(nvmlReturn_t))find(library, "nvmlErrorString", (function)(uintptr_t)no_text);
  nvmlReturn_t result = smi_nvml.nvmlInit_v2();
  return result == NVML_SUCCESS ? SMI_OK : smi_failed(result);
}

enum smi_status smi_failed(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_UNINITIALIZED:
    case NVML_ERROR_DRIVER_NOT_LOADED:
      printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
             " NVIDIA driver is installed and running.\n\n");
      return SMI_NO_DRIVER;
    case NVML_ERROR_NO_PERMISSION:
      printf("Failed to initialize NVML: %s\n", smi_nvml.nvmlErrorString(result));
      return SMI_NO_PERMISSION;
    case NVML_ERROR_NOT_FOUND: printf("No devices were found\n"); return SMI_NOT_FOUND;
    case NVML_ERROR_GPU_IS_LOST:
      printf("Unable to determine the device handle for the GPU: %s.  Reboot the system to recover this GPU\n",
             smi_nvml.nvmlErrorString(result));
      return SMI_LOST;
    case NVML_ERROR_FUNCTION_NOT_FOUND:
      printf("Failed to initialize NVML: %s\n", smi_nvml.nvmlErrorString(result));
      return SMI_NO_FUNCTION;
    default: printf("Failed to initialize NVML: %s\n", smi_nvml.nvmlErrorString(result)); return SMI_OTHER;
  }
}
