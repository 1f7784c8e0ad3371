#include "hooks.h"
#include "interposer/os/files.h"
#include "interposer/process/device.h"
#include "interposer/process/visible.h"

CUresult gs_cuInit(unsigned int flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  bool reads = joined && gs_visible_begin();
  result = gs_real.cuInit(flags);
  if (reads)
    gs_visible_end(result == CUDA_SUCCESS);
  if (joined && result == CUDA_SUCCESS)
    gs_devices_map();
  else if (joined)
    gs_files_mention("cuInit", result);
  return result;
}
