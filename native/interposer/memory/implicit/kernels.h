/* What a launch of a kernel needs besides device time. */
#ifndef GPUSHARE_MEMORY_KERNELS_H
#define GPUSHARE_MEMORY_KERNELS_H

#include "interposer/memory/implicit/implicit.h"
#include "interposer/time/streams/streams.h"

/* A launch of a kernel. */
struct gs_kernel_use {
  /* hash of the kernel, to be stored once its launch has succeeded; 0: the kernel is known, and there is nothing to
   * end */
  uint64_t kernel;
  struct gs_growing stack;
  bool collective; /* counted as a collective on the device of this ordinal, in this stream */
  int32_t ordinal;
  CUstream stream;
};

/* Identifies the kernel in the context of the stream; never 0. If the process has only one context, the driver need not
 * be asked for the context. */
static inline uint64_t gs_kernel_hash(CUfunction function, CUstream stream) {
  uint64_t generation = __atomic_load_n(&gs_process->kernel_generation, __ATOMIC_RELAXED);
  uint64_t hash = ((uintptr_t)function ^ generation << 48) * 0x9e3779b97f4a7c15u; /* 2^64 divided by the golden ratio */
  if (!GS_LIKELY(__atomic_load_n(&gs_process->contexts, __ATOMIC_RELAXED) == 1))
    /* an odd constant with well-distributed bits */
    hash = (hash ^ (uintptr_t)gs_stream_owner(stream)) * 0xd6e8feb86659fd93u;
  return (hash ^ hash >> 32) | 1;
}

static inline uint64_t *gs_kernel_place(uint64_t hash) {
  return &gs_process->kernels[hash >> 20 & (GS_KNOWN_KERNELS - 1)];
}
static inline bool gs_kernel_known(uint64_t hash) {
  return GS_LIKELY(__atomic_load_n(gs_kernel_place(hash), __ATOMIC_RELAXED) == hash);
}

CUresult gs_kernel_look_slow(struct gs_kernel_use *use, CUfunction function, CUstream stream, uint64_t hash);

/* To be called around a launch of the kernel: reserves what it needs the first time, and counts a collective each time.
 * use is always set; an error means that the needed memory does not fit, and that there is nothing to end. */
static inline CUresult gs_kernel_look(struct gs_kernel_use *use, CUfunction function, CUstream stream) {
  uint64_t hash = gs_kernel_hash(function, stream);
  use->kernel = 0;
  return gs_kernel_known(hash) ? CUDA_SUCCESS : gs_kernel_look_slow(use, function, stream, hash);
}
void gs_kernel_looked_slow(const struct gs_kernel_use *use, CUresult result);
static inline void gs_kernel_looked(const struct gs_kernel_use *use, CUresult result) {
  if (!GS_LIKELY(use->kernel == 0))
    gs_kernel_looked_slow(use, result);
}

/* Sets *stack to the kernel's local memory per thread, in bytes, and *ordinal to the context's device; reserves the
 * memory that the kernel's library takes in the context. */
CUresult gs_kernel_need(CUfunction function, CUcontext context, int *ordinal, uint64_t *stack);
/* Forgets all known kernels: handles of kernels or contexts may be reused from now on. */
void gs_kernels_forget(void);

#endif
