/* Memory that is freed in stream order. */
#ifndef GPUSHARE_MEMORY_ASYNC_FREE_H
#define GPUSHARE_MEMORY_ASYNC_FREE_H

#include "interposer/process/process.h"

/* Around driver calls with events or contexts of which another thread may end the context: false, and nothing to end, while
 * a context of the device begins or ends, or another thread is in here. */
bool gs_events_begin(int ordinal);
void gs_events_end(int ordinal);

/* The program freed memory, charged to ordinal, in the order of stream. It stays charged until the driver has freed
 * it. */
void gs_free_queued(int ordinal, uint64_t bytes, CUstream stream);
/* The same for a free in a destroyed pool; once it has happened, gs_pool_awaited is called. */
void gs_pool_free_queued(uint64_t pool, CUstream stream);
/* The same for a free whose stream cannot be queried any more: the free counts as done once the program has waited for
 * the stream's context, or the context has ended. */
void gs_pool_free_lost(uint64_t pool, CUcontext context);
void gs_frees_context_waited(CUcontext context);
void gs_frees_context_gone(CUcontext context);
/* Gives back the charges of memory that has been freed by now in streams of the device. */
void gs_frees_settle(int ordinal);

#endif
