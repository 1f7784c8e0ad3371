/* Streams to which this process has submitted work. */
#ifndef GPUSHARE_TIME_STREAMS_H
#define GPUSHARE_TIME_STREAMS_H

#include "interposer/time/timing.h"

/* Finds or adds a stream. handle: NULL is the legacy default stream; CU_STREAM_PER_THREAD that of this thread. NULL if
 * the stream cannot be determined. If there is no memory for one more stream, returns the device's `rest`, which
 * represents all such streams and has no context. */
struct gs_stream *gs_stream_of(CUstream handle);

/* The same without adding: NULL if this process never submitted to the stream. */
struct gs_stream *gs_stream_known(CUstream handle);

/* The context to which the stream belongs. current: the calling thread's context. NULL: the driver does not know the
 * stream. */
CUcontext gs_context_behind(CUstream handle, CUcontext current);

/* The context whose memory and programs the stream's work uses: for a green context its primary one; NULL: not
 * known. */
CUcontext gs_stream_owner(CUstream stream);

#endif
