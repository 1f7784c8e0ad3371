#include "interposer/memory/pools/pool_blocks.h"

#include "interposer/memory/pools/async_free.h"
#include "interposer/os/latch.h"
#include "interposer/time/streams/streams.h"

enum { STREAMS = 64 /* with queued frees in one pool; frees in further ones wait for a whole context */ };

static const void *thread_of(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? &gs_self : NULL; }

void gs_pool_block_freed(const struct gs_block *block, const CUstream *stream, bool success) {
  struct gs_block after = *block;
  if (stream && success) {
    gs_stream_of(*stream); /* so that it can be queried later */
    after.stream = *stream;
    after.context = gs_stream_owner(*stream);
    after.thread = thread_of(*stream);
    after.frees = 0;
  }
  if (gs_map_freed(block, stream ? &after : NULL, success) == GS_MAP_AWAITED)
    gs_pool_free_queued(block->pool, *stream);
}

/* Whether the handle names the stream of the free, or at least an existing stream of its context. If it is another
 * stream, the free has happened: the driver does not reuse the handle before. */
static bool can_ask(const struct gs_block *freed) {
  return freed->thread == thread_of(freed->stream) && gs_stream_known(freed->stream) &&
         gs_stream_owner(freed->stream) == freed->context;
}

void gs_pool_departed(const struct gs_departure *departure, bool destroyed) {
  struct gs_block freed[STREAMS];
  bool queued = gs_pool_left(departure, destroyed);
  unsigned count = destroyed && departure->number ? gs_map_forget(departure->number, freed, STREAMS) : 0;
  for (unsigned i = 0; queued && i < count; i++) {
    gs_pool_awaits(departure->number);
    if (i < STREAMS && can_ask(&freed[i]))
      gs_pool_free_queued(departure->number, freed[i].stream);
    else
      gs_pool_free_lost(departure->number, freed[i < STREAMS ? i : 0].context);
  }
  if (queued)
    gs_pool_awaited(departure->number);
}

void gs_pools_context_gone(CUcontext context) {
  for (uint32_t at = 0; gs_map_ended(context, &at);)
    ;
  gs_frees_context_gone(context);
}
