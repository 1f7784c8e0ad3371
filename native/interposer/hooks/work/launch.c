#include "hooks.h"
#include "interposer/hooks/work/launch.h"

#include "interposer/time/marks/waits.h"

CUresult gs_book_kernel(struct gs_around_kernel *around, CUfunction function, uint64_t key, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->submission.stream = NULL;
  around->use.kernel = 0;
  around->watched = gs_passage() ? gs_repeat_launch_watched(key, stream) : NULL;
  if (around->watched || !gs_enter(&result))
    return result;
  if ((result = gs_kernel_look(&around->use, function, stream)) != CUDA_SUCCESS)
    return result;
  return gs_submit(&around->submission, key, stream);
}

void gs_launch_attributes(const CUlaunchConfig *config) {
  for (unsigned int i = 0; config->attrs && i < config->numAttrs; i++)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
        config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
      gs_events_recorded_elsewhere();
}

CUresult gs_booked_kernel(struct gs_around_kernel *around, CUresult result) {
  if (around->watched) {
    gs_repeated_watched(around->watched, result);
    return result;
  }
  gs_submitted(&around->submission, result);
  gs_kernel_looked(&around->use, result);
  return result;
}

/* One launch on several devices: it has to pass the gate of each. */
CUresult gs_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int devices, unsigned int flags) {
  struct gs_submission submission[GS_MAX_DEVICES];
  struct gs_kernel_use used[GS_MAX_DEVICES];
  unsigned int looked = 0;
  unsigned int count = devices < GS_MAX_DEVICES ? devices : GS_MAX_DEVICES;
  CUresult result = CUDA_SUCCESS;
  if (!gs_enter(&result))
    return result != CUDA_SUCCESS ? result : gs_real.cuLaunchCooperativeKernelMultiDevice(list, devices, flags);
  if (!list)
    count = 0;
  for (result = CUDA_SUCCESS; looked < count && result == CUDA_SUCCESS; looked += result == CUDA_SUCCESS)
    result = gs_kernel_look(&used[looked], list[looked].function, list[looked].hStream);
  if (result != CUDA_SUCCESS) {
    while (looked > 0)
      gs_kernel_looked(&used[--looked], result);
    return result;
  }
  for (unsigned int i = 0; i < count; i++)
    gs_submit(&submission[i], gs_kernel_key(list[i].function, list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ),
              list[i].hStream);
  result = gs_real.cuLaunchCooperativeKernelMultiDevice(list, devices, flags);
  for (unsigned int i = 0; i < count; i++)
    gs_submitted(&submission[i], result);
  for (unsigned int i = 0; i < count; i++)
    gs_kernel_looked(&used[i], result);
  return result;
}
