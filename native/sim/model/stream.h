/* Streams: the interface for the other directories. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "sim/model/context.h"
#include "sim/model/op.h"

struct sim_stream;

/* True while the thread is in a function with _ptds or _ptsz in its name, for which the NULL stream is the per-thread
 * stream. */
extern __thread bool sim_per_thread;

/* Resolves a stream handle, including CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. NULL is the legacy stream, or the
 * calling thread's stream if sim_per_thread is set. Errors: INVALID_CONTEXT, INVALID_HANDLE. */
CUresult sim_stream_get(CUstream handle, struct sim_stream **stream);
struct sim_ctx *sim_stream_ctx(const struct sim_stream *stream);
bool sim_stream_capturing(struct sim_stream *stream);

/* Appends work to a stream, or a node to the graph into which the stream is captured. Blocks while the stream's queue
 * is full. Enforces the rules of capture (legacy stream during a capture: STREAM_CAPTURE_IMPLICIT). */
CUresult sim_submit(struct sim_stream *stream, const struct sim_op *op);
/* Checks whether a synchronous call may wait for the stream. On a capturing stream this is an error and invalidates the
 * capture. Requires sim_lock. */
CUresult sim_stream_may_wait(struct sim_stream *stream);
/* Waits until all work submitted to the stream so far is done. STREAM_CAPTURE_UNSUPPORTED on a capturing stream. */
CUresult sim_stream_wait(struct sim_stream *stream);
/* sim_submit followed by sim_stream_wait, as for synchronous copies. STREAM_CAPTURE_UNSUPPORTED on a capturing
 * stream. */
CUresult sim_submit_and_wait(struct sim_stream *stream, const struct sim_op *op);
/* True if no work is queued in any stream of the process, apart from the item that this thread is completing. May be
 * called with any lock held. */
bool sim_idle(void);
/* For calls that are unsafe during a stream capture (cuMemAlloc, cuMemFree...). Depending on the thread's capture mode,
 * returns success, or STREAM_CAPTURE_UNSUPPORTED after invalidating the captures concerned. */
CUresult sim_capture_guard(void);

#endif
