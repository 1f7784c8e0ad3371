/* What generated handlers pass to functions that call the driver themselves. */
#ifndef GPUSHARE_HOOKS_CALL_H
#define GPUSHARE_HOOKS_CALL_H

#include "interposer/process/process.h"

/* A call of the real driver's function with the program's arguments; gs_call makes it. Valid until the handler
 * returns. */
struct gs_call {
  CUresult (*make)(const void *arguments);
  const void *arguments;
};
static inline CUresult gs_call(const struct gs_call *call) { return call->make(call->arguments); }

/* For rows of which only the kind matters. */
static inline CUresult gs_do_forward(const struct gs_call *call) { return gs_call(call); }

/* Where a program wants a size or an address: functions older than CUDA 3.2 return them in 32 bits. */
struct gs_out {
  void *place; /* may be NULL */
  bool narrow;
};
static inline struct gs_out gs_out32(unsigned int *place) { return (struct gs_out){place, true}; }
static inline struct gs_out gs_out64(size_t *place) { return (struct gs_out){place, false}; }
static inline struct gs_out gs_address_out(CUdeviceptr *place) { return (struct gs_out){place, false}; }
static inline uint64_t gs_out_read(struct gs_out out) {
  return out.narrow ? *(const unsigned int *)out.place : *(const uint64_t *)out.place;
}
/* Values that do not fit in 32 bits become UINT32_MAX. */
static inline void gs_out_write(struct gs_out out, uint64_t value) {
  if (out.place && out.narrow)
    *(unsigned int *)out.place = value > UINT32_MAX ? UINT32_MAX : (unsigned int)value;
  else if (out.place)
    *(uint64_t *)out.place = value;
}

#endif
