/* Green contexts: parts of a device's multiprocessors. Memory and programs are those of the device's primary
 * context. */
#ifndef GPUSHARE_GREENS_H
#define GPUSHARE_GREENS_H

#include "interposer/process/process.h"

struct gs_green {
  CUcontext context; /* the green one, as a CUcontext */
  CUcontext primary; /* whose memory and programs it uses */
  int ordinal;
  uint64_t number; /* distinguishes contexts that had the same handle */
};

/* Makes room for one more entry: call it before the driver. False: out of memory. */
bool gs_green_room(void);
/* Adds a green context and assigns its number. */
void gs_green_add(CUcontext context, CUcontext primary, int ordinal);
/* False: context is not a live green context. */
bool gs_green_find(CUcontext context, struct gs_green *found);
void gs_green_remove(CUcontext context);
/* Removes the green contexts of a primary context that has ended. */
void gs_greens_remove(CUcontext primary);

/* The context whose memory and programs a context uses: for a green context its primary one, else the context
 * itself. */
CUcontext gs_context_owner(CUcontext context);
/* The same for the calling thread's current context; NULL: it has none. */
CUcontext gs_owner_current(void);

#endif
