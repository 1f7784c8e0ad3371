/* Contexts. */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include "interposer/hooks/call.h"
#include "interposer/memory/pools/reserve.h"
#include "interposer/process/greens.h"
#include "interposer/process/process.h"

/* Reserves the memory that a context costs: 0, or as gs_reserve_here. *bytes is 0 and *ordinal GS_NO_DEVICE if the grant has
 * no such device, an error that is left to the driver. */
int gs_context_reserve(CUdevice device, int *ordinal, uint64_t *bytes);
/* Whether the reservation, which was answered with `reserved`, and the driver's call, with result, are to be made again.
 * Waits before, so it is to be called with no lock held. */
bool gs_context_again(int reserved, CUresult result, int ordinal, struct gs_patience *patience);
/* There are so many more contexts now. */
void gs_contexts_changed(uint32_t by);
/* Gives back what ended with a context. Called with gone_lock held, so that nothing of another context with the same
 * handle is in the books yet. */
void gs_context_gone(CUcontext context, int ordinal);

/* A call that may end a context. The interposer holds no lock across it, because the call may wait for work that waits
 * for the program, in any thread. The handle can therefore be reused for another context before the call returns; the
 * thread that receives the handle again then records the end of the earlier context. */
struct gs_ending {
  CUcontext context;
  int ordinal;
  uint64_t number; /* distinguishes contexts that had the same handle */
};

/* To be called before and after that call, with no lock held. lives: the context still exists. */
void gs_context_ending(const struct gs_ending *ending);
void gs_context_ended(const struct gs_ending *ending, bool lives);

/* The same for the device's primary context, if it has one. */
struct gs_ending gs_primary_ending(int ordinal);
/* The call has returned; if the context ended, it is removed from the books with everything it held. */
void gs_primary_ended(const struct gs_ending *ending, CUresult result);

/* With the device's context_lock held: primary is the active primary context of the device, and its cost is charged. */
void gs_primary_is(int ordinal, CUcontext primary);

/* The driver has just given this handle to a green context: a context, or a green one, that had it has ended. With
 * gone_lock. */
void gs_context_replaced(CUcontext context);
/* A green context has ended. With gone_lock. */
void gs_green_gone(const struct gs_green *green);

/* ---- handlers ---- */

/* affinity, affinities: NULL and 0 if the call has none. */
CUresult gs_do_context_create(const struct gs_call *call, CUcontext *context, CUdevice device, unsigned int flags,
                              const CUexecAffinityParam *affinity, int affinities);
/* last: a successful call ends the context, whatever its number of holders; else it removes one holder. */
CUresult gs_do_context_end(const struct gs_call *call, CUcontext context, bool last);
CUresult gs_do_primary_end(const struct gs_call *call, CUdevice device);

#endif
