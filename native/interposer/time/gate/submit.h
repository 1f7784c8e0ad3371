/* Gating and metering of every submission of compute work. */
#ifndef GPUSHARE_TIME_SUBMIT_H
#define GPUSHARE_TIME_SUBMIT_H

#include "interposer/time/timing.h"

struct gs_submission {
  struct gs_stream *stream; /* NULL: neither gated nor metered */
  struct gs_function *function;
  double estimate;
  uint32_t plan, segments; /* segments: of the queue when it was booked */
  uint64_t planned, began;
};

/* Class of sizes whose time is measured separately, 0 to 259: four classes per power of two. */
static inline uint64_t gs_size_class(uint64_t size) {
  unsigned int bits = size ? 64 - (unsigned int)__builtin_clzll(size) : 0;
  return bits < 3 ? size : (uint64_t)bits << 2 | (size >> (bits - 3) & 3);
}

/* To be called before a submission, when gs_enter has returned true. key: the function, the graph, or a kind of fill;
 * never 0. Returns CUDA_SUCCESS. */
CUresult gs_submit(struct gs_submission *submission, uint64_t key, CUstream stream);

/* Notes that the driver has the submission, or has refused it. */
static inline void gs_arrived(struct gs_stream *stream) { __atomic_add_fetch(&stream->arrived, 1, __ATOMIC_RELEASE); }
void gs_submitted_slow(struct gs_submission *submission, CUresult result);

/* To be called after the submission. Returns result. */
static inline CUresult gs_submitted(struct gs_submission *submission, CUresult result) {
  if (!submission->stream)
    return result;
  if (GS_LIKELY(submission->plan == 0 && result == CUDA_SUCCESS &&
                __atomic_load_n(&submission->stream->queue.segments, __ATOMIC_RELAXED) == submission->segments))
    gs_arrived(submission->stream);
  else
    gs_submitted_slow(submission, result);
  return result;
}

/* gs_enter, then gs_submit. Returns the error of gs_enter. */
static inline CUresult gs_enter_submit(struct gs_submission *submission, uint64_t key, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  submission->stream = NULL;
  return gs_enter(&result) ? gs_submit(submission, key, stream) : result;
}

#endif
