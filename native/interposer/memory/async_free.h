/* Memory that is freed in stream order. */
#ifndef GPUSHARE_MEMORY_ASYNC_FREE_H
#define GPUSHARE_MEMORY_ASYNC_FREE_H

#include "interposer/process/process.h"

/* The program freed memory, charged to ordinal, in the order of stream. It stays charged until the driver has freed
 * it. */
void gs_free_queued(int ordinal, uint64_t bytes, CUstream stream);
/* Gives back the charges of memory that has been freed by now in streams of the device. */
void gs_frees_settle(int ordinal);

#endif
