/* Calls that launch kernels. */
#ifndef GPUSHARE_HOOKS_LAUNCH_H
#define GPUSHARE_HOOKS_LAUNCH_H

#include "interposer/memory/implicit/kernels.h"
#include "interposer/process/process.h"
#include "interposer/time/gate/submit.h"
#include "interposer/time/streams/repeat.h"

/* The time of a kernel grows with its grid, so it is measured separately for each size class of the number of blocks.
 * That number is below 2^63, and the address of a function below 2^56. */
static inline uint64_t gs_kernel_key(CUfunction function, unsigned int x, unsigned int y, unsigned int z) {
  return (uint64_t)(uintptr_t)function ^ gs_size_class((uint64_t)x * y * z) << 56;
}
/* The launch may record an event. */
void gs_launch_attributes(const CUlaunchConfig *config);

static inline uint64_t gs_config_key(CUfunction function, const CUlaunchConfig *config) {
  if (config && config->numAttrs > 0)
    gs_launch_attributes(config);
  return config ? gs_kernel_key(function, config->gridDimX, config->gridDimY, config->gridDimZ) : 1;
}

struct gs_around_kernel {
  struct gs_repeat *repeat;  /* if the launch repeats the previous one; then the members below are not set. Else NULL */
  struct gs_repeat *watched; /* the same where the grant lends idle memory */
  struct gs_submission submission;
  struct gs_kernel_use use;
};
/* Out of line, so that a repeated launch does not save the registers that these use. */
CUresult gs_book_kernel(struct gs_around_kernel *around, CUfunction function, uint64_t key, CUstream stream);
CUresult gs_booked_kernel(struct gs_around_kernel *around, CUresult result);

static inline CUresult gs_before_kernel(struct gs_around_kernel *around, CUfunction function, uint64_t key,
                                        CUstream stream) {
  around->repeat = gs_repeat_launch(key, stream);
  return GS_LIKELY(around->repeat) ? CUDA_SUCCESS : gs_book_kernel(around, function, key, stream);
}

static inline CUresult gs_after_kernel(struct gs_around_kernel *around, CUresult result) {
  if (!GS_LIKELY(around->repeat))
    return gs_booked_kernel(around, result);
  gs_repeated(around->repeat, result);
  return result;
}

#endif
