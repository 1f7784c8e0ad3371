/* Memory of graph allocation nodes. A device has one pool for all graphs of a process; it grows when a graph is
 * launched or uploaded, by at most what the graph's nodes allocate, and shrinks when it is trimmed. */
#include "interposer/hooks/graphs/memory.h"

#include <errno.h>

#include "interposer/memory/books/books.h"
#include "interposer/memory/pools/pool_growth.h"
#include "interposer/process/passage/room.h"
#include "interposer/process/refused.h"

void gs_graph_memory_end(struct gs_graph_need *need) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->growing >> ordinal & 1)
      gs_growth_end(
          &(struct gs_growth){.pool = gs_graph_pool(ordinal), .ordinal = ordinal, .need = need->reserved[ordinal]});
  need->growing = 0;
}

void gs_graph_memory_settle(int ordinal) { gs_pool_settle(gs_graph_pool(ordinal), ordinal); }

/* 0, or as gs_reserve_here. */
static int begin_growth(struct gs_growth *growth, int ordinal, uint64_t bytes, CUstream stream) {
  uint64_t pool = gs_graph_pool(ordinal);
  int rc = gs_growth_begin(growth, pool, ordinal, bytes);
  if (rc == -ENOMEM && gs_growth_make_room(pool, ordinal, bytes, stream))
    rc = gs_growth_begin(growth, pool, ordinal, bytes);
  return rc;
}

int gs_graph_memory_begin(struct gs_graph_need *need, CUstream stream) {
  uint32_t wanted = 0;
  int rc = 0;
  need->growing = 0;
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    wanted |= (uint32_t)(need->devices >> ordinal & 1 && need->bytes[ordinal] > 0) << ordinal;
  if (!gs_table_room(&gs_books()->pools, GS_MAX_DEVICES))
    return wanted == 0 ? 0 : -ENOMEM;
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES && rc == 0; ordinal++) {
    struct gs_growth growth;
    if (!(wanted >> ordinal & 1))
      continue;
    rc = begin_growth(&growth, ordinal, need->bytes[ordinal], stream);
    if (rc == 0) {
      need->reserved[ordinal] = growth.need;
      need->growing |= 1u << ordinal;
    }
  }
  if (rc < 0)
    gs_graph_memory_end(need);
  return rc;
}

CUresult gs_graph_memory_await(struct gs_graph_need *need, CUstream stream) {
  struct gs_patience patience = {0};
  int rc;
  while ((rc = gs_graph_memory_begin(need, stream)) == -EAGAIN && gs_room_await(&patience)) {
  }
  return gs_refused(rc < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}
