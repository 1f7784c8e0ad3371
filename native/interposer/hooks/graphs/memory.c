/* Memory of graph allocation nodes. A device has one pool for all graphs of a process; it grows when a graph is
 * launched or uploaded, by at most what the graph's nodes allocate, and shrinks when it is trimmed. */
#include "interposer/hooks/graphs/memory.h"

#include "interposer/memory/books/books.h"
#include "interposer/memory/pools/pool_growth.h"

void gs_graph_memory_end(struct gs_graph_need *need) {
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    if (need->growing >> ordinal & 1)
      gs_growth_end(
          &(struct gs_growth){.pool = gs_graph_pool(ordinal), .ordinal = ordinal, .need = need->reserved[ordinal]});
  need->growing = 0;
}

void gs_graph_memory_settle(int ordinal) { gs_pool_settle(gs_graph_pool(ordinal), ordinal); }

/* Begins a growth for everything that the graph may allocate; false: it does not fit, and no growth was begun. */
bool gs_graph_memory_begin(struct gs_graph_need *need, CUstream stream) {
  uint32_t wanted = 0;
  need->growing = 0;
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++)
    wanted |= (uint32_t)(need->devices >> ordinal & 1 && need->bytes[ordinal] > 0) << ordinal;
  if (!gs_table_room(&gs_books()->pools, GS_MAX_DEVICES))
    return wanted == 0;
  for (int ordinal = 0; ordinal < GS_MAX_DEVICES; ordinal++) {
    struct gs_growth growth;
    if (!(wanted >> ordinal & 1))
      continue;
    uint64_t pool = gs_graph_pool(ordinal), bytes = need->bytes[ordinal];
    if (!gs_growth_begin(&growth, pool, ordinal, bytes) &&
        !(gs_growth_make_room(pool, ordinal, bytes, stream) && gs_growth_begin(&growth, pool, ordinal, bytes))) {
      gs_graph_memory_end(need);
      return false;
    }
    need->reserved[ordinal] = growth.need;
    need->growing |= 1u << ordinal;
  }
  return true;
}
