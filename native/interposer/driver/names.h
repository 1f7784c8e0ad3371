/* How the real driver's functions are found; generated into driver_names.c. */
#ifndef GPUSHARE_DRIVER_NAMES_H
#define GPUSHARE_DRIVER_NAMES_H

#include "interposer/driver/driver.h"

/* The name and version under which cuGetProcAddress knows a function. */
struct gs_known {
  const char *base;
  int version;    /* the CUDA version under which cuGetProcAddress knows this ABI; 0: none */
  int per_thread; /* the _ptds or _ptsz variant */
};

extern const struct gs_known gs_called[GS_INDEX_COUNT];
extern const char *const gs_names[]; /* indexed by enum gs_index, followed by the names in graphics.tsv */
extern const unsigned gs_nnames;

#endif
