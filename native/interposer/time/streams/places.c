#include "interposer/time/streams/places.h"

#include <sys/mman.h>

enum { FIRST_BUCKETS = 128 /* a power of two; doubled when there are as many streams */ };

static struct gs_stream **bucket_of(struct gs_time *time, CUstream handle, uint64_t thread) {
  uint64_t hash = ((uintptr_t)handle ^ thread) * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 over the golden ratio */
  return &time->bucket[hash >> 32 & (time->buckets - 1)];
}

struct gs_stream *gs_place_find(struct gs_time *time, CUstream handle, CUcontext context, uint64_t thread) {
  struct gs_stream *stream = time->buckets ? *bucket_of(time, handle, thread) : NULL;
  for (; stream; stream = stream->alike)
    if (!gs_stream_retired(stream) && stream->handle == handle && stream->thread == thread &&
        (!context || stream->context->handle == context))
      return stream;
  return NULL;
}

static void put(struct gs_time *time, struct gs_stream *stream, CUstream handle, uint64_t thread) {
  struct gs_stream **bucket = bucket_of(time, handle, thread);
  stream->alike = *bucket;
  *bucket = stream;
}

/* Doubles the index when it is full. If there is no memory for that, its chains get longer. */
static bool index_room(struct gs_time *time) {
  uint32_t before = time->buckets, size = before ? 2 * before : FIRST_BUCKETS;
  struct gs_stream **old = time->bucket, **bigger;
  if (time->streams < before)
    return true;
  bigger = gs_private_map(size * sizeof *bigger);
  if (!bigger)
    return before > 0;
  time->bucket = bigger;
  time->buckets = size;
  for (uint32_t i = 0; i < before; i++)
    for (struct gs_stream *stream = old[i], *next; stream; stream = next) {
      next = stream->alike;
      put(time, stream, stream->handle, stream->thread);
    }
  if (before)
    munmap(old, before * sizeof *old);
  return true;
}

struct gs_stream *gs_place_take(struct gs_time *time, CUstream handle, uint64_t thread) {
  struct gs_stream *stream = time->free_streams;
  if (!index_room(time))
    return NULL;
  if (stream)
    time->free_streams = stream->alike;
  else if (!(stream = gs_private_map(sizeof *stream)))
    return NULL;
  put(time, stream, handle, thread);
  time->streams++;
  return stream;
}

void gs_place_give(struct gs_time *time, struct gs_stream *stream) {
  struct gs_stream **at = bucket_of(time, stream->handle, stream->thread);
  while (*at != stream)
    at = &(*at)->alike;
  *at = stream->alike;
  time->streams--;
  stream->alike = time->free_streams;
  time->free_streams = stream;
}

struct gs_context *gs_context_known(const struct gs_time *time, CUcontext handle) {
  struct gs_context *context = time->contexts;
  while (context && context->handle != handle)
    context = context->next;
  return context;
}

struct gs_context *gs_context_place(struct gs_time *time, CUcontext handle, int ordinal) {
  struct gs_context *place = gs_context_known(time, NULL);
  if (!place) {
    if (!(place = gs_private_map(sizeof *place)))
      return NULL;
    place->next = time->contexts;
    __atomic_store_n(&time->contexts, place, __ATOMIC_RELEASE);
  }
  place->base = place->asking = NULL;
  place->clock.set = false;
  place->clocked = 0;
  place->free_events = 0;
  place->ending = 0;
  place->ordinal = ordinal;
  __atomic_store_n(&place->handle, handle, __ATOMIC_RELAXED); /* waits.c reads it without a latch */
  return place;
}
