/* Memory that is freed in the order of a stream. */
#ifndef GPUSHARE_MEMORY_ASYNC_FREE_H
#define GPUSHARE_MEMORY_ASYNC_FREE_H

#include "interposer/memory/books.h"

/* The driver was told to free entry's memory in the order of stream: the charge stays until it has. */
void gs_free_queued(const struct gs_entry *entry, CUstream stream);
/* Gives back what has been freed by now in streams of the device. */
void gs_frees_settle(int ordinal);

#endif
