/* The tables behind cuGetProcAddress, generated into hooks_lookup.c. Sorted by base, then plain before per-thread, then
 * version. */
#ifndef GPUSHARE_LOOKUP_H
#define GPUSHARE_LOOKUP_H

#include "interposer/driver/names.h"

struct gs_hook {
  const char *base;
  int version;    /* the CUDA version under which cuGetProcAddress knows this ABI; 0: none */
  int per_thread; /* the _ptds or _ptsz variant */
  void *handler;
  const char *symbol;
};

extern const struct gs_hook gs_hooks[];
extern const unsigned gs_nhooks;
extern const struct gs_known gs_known[]; /* every versioned symbol of driver.tsv, hooked or not */
extern const unsigned gs_nknown;
extern const int gs_table_version; /* CUDA version of the header from which driver.tsv was made */

#endif
