/* Memory that is freed in the order of a stream. */
#ifndef GPUSHARE_MEMORY_ASYNC_FREE_H
#define GPUSHARE_MEMORY_ASYNC_FREE_H

#include "interposer/process/process.h"

/* The driver was told to free memory that is charged to ordinal in the order of stream: the charge stays until it
 * has. */
void gs_free_queued(int ordinal, uint64_t bytes, CUstream stream);
/* Gives back what has been freed by now in streams of the device. */
void gs_frees_settle(int ordinal);

#endif
