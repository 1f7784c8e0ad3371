/* Streams this process submitted to. */
#ifndef GPUSHARE_TIME_STREAMS_H
#define GPUSHARE_TIME_STREAMS_H

#include "interposer/time/timing.h"

/* NULL means the legacy default stream; CU_STREAM_PER_THREAD that of this thread. NULL when it cannot be known or
 * kept. */
struct gs_stream *gs_stream_of(CUstream handle);

/* The same, NULL when this process never submitted to it. */
struct gs_stream *gs_stream_known(CUstream handle);

/* The context the stream belongs to, current being the calling thread's; NULL: the driver does not know the stream. */
CUcontext gs_context_behind(CUstream handle, CUcontext current);

/* The context whose memory and programs the stream's work uses: of a green one the primary; NULL: not known. */
CUcontext gs_stream_owner(CUstream stream);

#endif
