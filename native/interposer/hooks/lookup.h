/* The tables behind cuGetProcAddress, generated into hooks.c. Sorted by base, then plain before per-thread, then
 * version. */
#ifndef GPUSHARE_LOOKUP_H
#define GPUSHARE_LOOKUP_H

#include "interposer/process/process.h"

struct gs_hook {
  const char *base;
  int version;    /* the CUDA version cuGetProcAddress knows this ABI by, 0: by none */
  int per_thread; /* the _ptds or _ptsz variant */
  void *handler;
  const char *symbol;
};

/* Every versioned symbol of driver.tsv, hooked or not. */
struct gs_known {
  const char *base;
  int version, per_thread;
};

extern const struct gs_hook gs_hooks[];
extern const unsigned gs_nhooks;
extern const struct gs_known gs_known[];
extern const unsigned gs_nknown;
extern const struct gs_known gs_called[GS_INDEX_COUNT]; /* what cuGetProcAddress calls a symbol; version 0: nothing */
extern const int gs_table_version;                      /* of the header that driver.tsv was made from */
extern const char *const gs_names[];                    /* enum gs_index, then those of graphics.txt */
extern const unsigned gs_nnames;

#endif
