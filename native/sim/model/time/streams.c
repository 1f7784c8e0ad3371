/* The streams of contexts. */
#include "sim/model/time/streams.h"

#include <stdlib.h>

#include "sim/model/capture.h"
#include "sim/model/handle.h"

static struct sim_kind stream_kind = {sizeof(struct sim_stream), 0x73747265, NULL};
static uint64_t stream_ids;

struct sim_stream *sim_stream_new(struct sim_ctx *ctx, unsigned flags, int priority) {
  struct sim_stream *stream = sim_handle_new(&stream_kind);
  if (stream == NULL)
    return NULL;
  stream->ctx = ctx;
  stream->flags = flags;
  stream->priority = priority;
  stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
  stream->id = ++stream_ids;
  stream->next = ctx->streams;
  ctx->streams = stream;
  return stream;
}

static void stream_free(struct sim_stream *stream) {
  free(stream->cap_deps);
  free(stream->cap_edges);
  sim_handle_free(&stream_kind, stream);
}

void sim_streams_free(struct sim_ctx *ctx) {
  for (struct sim_stream *stream = ctx->streams, *next; stream; stream = next) {
    next = stream->next;
    if (stream->capture)
      sim_capture_stream_gone(stream);
    stream_free(stream);
  }
  ctx->streams = ctx->legacy = NULL;
}

void sim_streams_sweep(void) {
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (struct sim_stream **at = &ctx->streams; *at;) {
      struct sim_stream *stream = *at;
      if (!stream->gone || stream->head || stream->kicked || stream->chain_kicked) {
        at = &stream->next;
        continue;
      }
      *at = stream->next;
      stream_free(stream);
    }
}

void sim_stream_destroy(struct sim_stream *stream) {
  if (stream->capture)
    sim_capture_stream_gone(stream);
  stream->gone = true;
  stream->magic = 0;
  sim_streams_sweep();
}

bool sim_stream_known(const struct sim_stream *stream) { return stream->magic == stream_kind.magic; }
