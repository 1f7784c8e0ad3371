/* Contexts. */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

/* Reserves one context's cost; 0 bytes and GS_NO_DEVICE where the driver is to say that there is no such device. */
CUresult gs_context_reserve(CUdevice device, int *ordinal, uint64_t *bytes);

/* A call that may end a context. No lock of ours is held over it: it may wait for work that waits for the program, in
 * whichever thread. So the handle can come back, as another context's, before the caller of that call is back; whoever
 * is given it again books the end of the one that had it. */
struct gs_ending {
  CUcontext context;
  int ordinal;
  uint64_t number; /* tells contexts of the same handle apart */
};

/* Before the call, with no lock held. */
void gs_context_ending(const struct gs_ending *ending);
void gs_context_ended(const struct gs_ending *ending, bool lives);

/* The same where it is the device's primary context that may end, of which there may be none. */
struct gs_ending gs_primary_ending(int ordinal);
/* The call is over; if the context ended, it goes out of the books with all it held. */
void gs_primary_ended(const struct gs_ending *ending, CUresult result);

/* With the device's context_lock: this is its active primary context, and its cost is charged. */
void gs_primary_is(int ordinal, CUcontext primary);

/* ---- handlers ---- */

/* affinity: NULL and 0 where the call has none. */
CUresult gs_do_context_create(const struct gs_call *call, CUcontext *context, CUdevice device, unsigned int flags,
                              const CUexecAffinityParam *affinity, int affinities);
/* last: whether a call that succeeded ended it for certain; else only the driver knows. */
CUresult gs_do_context_end(const struct gs_call *call, CUcontext context, bool last);
CUresult gs_do_primary_end(const struct gs_call *call, CUdevice device);

#endif
