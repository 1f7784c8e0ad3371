/* Which functions are collectives. */
#ifndef GPUSHARE_MEMORY_COLLECTIVES_H
#define GPUSHARE_MEMORY_COLLECTIVES_H

#include "interposer/process/process.h"

/* The driver gave a function or kernel for this name (may be NULL). program: its module or library; context: the one it
 * ends with, NULL for a library's. */
void gs_collective_found(const void *function, const char *name, const void *program, CUcontext context);
/* It is another one's function, of the same program and kind. */
void gs_collective_same(const void *function, const void *kernel, const void *program);
/* A program was unloaded. */
void gs_collectives_gone(const void *program);
bool gs_collective(const void *function);
/* Whether any function of one was ever found. */
static inline bool gs_collectives_known(void) {
  return __atomic_load_n(&gs_process->collectives, __ATOMIC_ACQUIRE) > 0;
}

#endif
