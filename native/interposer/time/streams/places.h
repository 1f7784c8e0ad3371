/* The places of streams and contexts in memory: they never move and are never freed, because they are read without a
 * lock, and their number has no bound. */
#ifndef GPUSHARE_TIME_PLACES_H
#define GPUSHARE_TIME_PLACES_H

#include "interposer/time/timing.h"

/* Distinguishes the per-thread default streams of different threads; 0 for other streams. Such a stream ends with its
 * thread, without a call. Its place goes to the next thread whose gs_self has the same address, which is correct: the
 * work of an ended thread's stream is done or will be. */
static inline uint64_t gs_stream_thread(CUstream handle) {
  return handle == CU_STREAM_PER_THREAD ? (uint64_t)(uintptr_t)&gs_self : 0;
}

/* Whether the calling thread can name the stream to the driver: not the per-thread default stream of another thread,
 * nor the stream that represents others (`rest`). */
static inline bool gs_stream_nameable(const struct gs_stream *stream) {
  return stream->context && stream->thread == gs_stream_thread(stream->handle);
}

/* ---- with `tables` held ---- */

/* The live stream with that handle. context: NULL if the handle alone identifies it. */
struct gs_stream *gs_place_find(struct gs_time *time, CUstream handle, CUcontext context, uint64_t thread);
/* Takes a place for one more stream and adds it to the index; the caller sets it up. NULL: out of memory. */
struct gs_stream *gs_place_take(struct gs_time *time, CUstream handle, uint64_t thread);
/* Frees the place of a stream that is no longer live, for reuse. */
void gs_place_give(struct gs_time *time, struct gs_stream *stream);
/* The place of a context; NULL: it has none. */
struct gs_context *gs_context_known(const struct gs_time *time, CUcontext handle);
/* A new place for a context on a device. NULL: out of memory. */
struct gs_context *gs_context_place(struct gs_time *time, CUcontext handle, int ordinal);

#endif
