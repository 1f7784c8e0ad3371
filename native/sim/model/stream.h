/* Streams, as the other rooms use them. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "sim/model/context.h"
#include "sim/model/op.h"

struct sim_stream;

/* Set while a thread is in one of the functions with _ptds or _ptsz in their names, whose NULL stream is its own. */
extern __thread bool sim_per_thread;

/* Resolves a stream handle: NULL is the legacy stream, or the calling thread's own where sim_per_thread says so; CU_STREAM_LEGACY, CU_STREAM_PER_THREAD. INVALID_CONTEXT, INVALID_HANDLE. */
CUresult sim_stream_get(CUstream handle, struct sim_stream **stream);
struct sim_ctx *sim_stream_ctx(const struct sim_stream *stream);
bool sim_stream_capturing(struct sim_stream *stream);

/* Appends work to a stream, or a node to the graph the stream is captured into. Blocks while the stream's queue is
 * full. Capture rules are checked here (legacy stream during a capture: STREAM_CAPTURE_IMPLICIT). */
CUresult sim_submit(struct sim_stream *stream, const struct sim_op *op);
/* May a synchronous call wait for it? Illegal on a capturing stream, whose capture it ends. sim_lock held. */
CUresult sim_stream_may_wait(struct sim_stream *stream);
/* Waits until everything submitted to the stream so far is done. STREAM_CAPTURE_UNSUPPORTED on a capturing stream. */
CUresult sim_stream_wait(struct sim_stream *stream);
/* Both, as synchronous copies do; STREAM_CAPTURE_UNSUPPORTED where the stream captures. */
CUresult sim_submit_and_wait(struct sim_stream *stream, const struct sim_op *op);
/* For calls that are unsafe while a stream is captured (cuMemAlloc, cuMemFree...): by the thread's capture mode either
 * fine or STREAM_CAPTURE_UNSUPPORTED, which also invalidates the captures concerned. */
CUresult sim_capture_guard(void);

#endif
