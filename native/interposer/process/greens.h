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

/* Makes sure that one more can be added: call before the driver is asked. False: there is no memory. */
bool gs_green_room(void);
/* The number is given here. */
void gs_green_add(CUcontext context, CUcontext primary, int ordinal);
/* False: context is no green one that is alive. */
bool gs_green_find(CUcontext context, struct gs_green *found);
void gs_green_remove(CUcontext context);
/* The primary context is gone, and its green ones with it. */
void gs_greens_remove(CUcontext primary);

/* The context whose memory and programs it uses: of a green context the primary one, else itself. */
CUcontext gs_context_owner(CUcontext context);
/* That of the calling thread's current context; NULL: it has none. */
CUcontext gs_owner_current(void);

#endif
