/* How the real driver's functions are found; generated into driver_names.c. */
#ifndef GPUSHARE_DRIVER_NAMES_H
#define GPUSHARE_DRIVER_NAMES_H

#include "interposer/driver/driver.h"

/* What cuGetProcAddress calls a function. */
struct gs_known {
  const char *base;
  int version;    /* the CUDA version under which cuGetProcAddress knows this ABI; 0: none */
  int per_thread; /* the _ptds or _ptsz variant */
};

extern const struct gs_known gs_called[GS_INDEX_COUNT];
extern const char *const gs_names[]; /* by enum gs_index, followed by those of graphics.txt */
extern const unsigned gs_nnames;

#endif
