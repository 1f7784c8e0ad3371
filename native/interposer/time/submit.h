/* Every submission of compute work. */
#ifndef GPUSHARE_TIME_SUBMIT_H
#define GPUSHARE_TIME_SUBMIT_H

#include "interposer/time/timing.h"

struct gs_submission {
  struct gs_stream *stream; /* NULL: neither gated nor metered */
  struct gs_function *function;
  double estimate;
  uint32_t plan;
  uint64_t planned, began;
};

/* key: the function, the graph, or a kind of fill; never 0. To be called when gs_enter said true. Gives
 * CUDA_SUCCESS. */
CUresult gs_submit(struct gs_submission *submission, uint64_t key, CUstream stream);

void gs_submitted_slow(struct gs_submission *submission, CUresult result);

/* Gives result. */
static inline CUresult gs_submitted(struct gs_submission *submission, CUresult result) {
  if (!GS_LIKELY(!submission->stream || (submission->plan == 0 && result == CUDA_SUCCESS)))
    gs_submitted_slow(submission, result);
  return result;
}

/* gs_submit after gs_enter, whose error it gives. */
static inline CUresult gs_enter_submit(struct gs_submission *submission, uint64_t key, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  submission->stream = NULL;
  return gs_enter(&result) ? gs_submit(submission, key, stream) : result;
}

#endif
