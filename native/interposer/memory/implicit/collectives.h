/* Which functions are collectives. */
#ifndef GPUSHARE_MEMORY_COLLECTIVES_H
#define GPUSHARE_MEMORY_COLLECTIVES_H

#include "interposer/process/process.h"

/* The driver returned a function or kernel for this name (may be NULL). program: its module or library; context: the
 * context with which it ends, NULL for a library's. */
void gs_collective_found(const void *function, const char *name, const void *program, CUcontext context);
/* kernel and function are the same code of a program: function is a collective if kernel is. */
void gs_collective_same(const void *function, const void *kernel, const void *program);
/* A program was unloaded: forgets its functions. */
void gs_collectives_gone(const void *program);
bool gs_collective(const void *function);
/* Whether any function of a collective was ever found. */
static inline bool gs_collectives_known(void) {
  return __atomic_load_n(&gs_process->collectives, __ATOMIC_ACQUIRE) > 0;
}

#endif
