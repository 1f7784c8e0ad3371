#include "hooks.h"
#include "interposer/os/files.h"
#include "interposer/process/device.h"

CUresult gs_cuInit(unsigned int flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuInit(flags);
  if (joined && result == CUDA_SUCCESS)
    gs_devices_map();
  else if (joined)
    gs_files_mention("cuInit", result);
  return result;
}
