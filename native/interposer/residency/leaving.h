/* Movable memory that ends otherwise than at once. */
#ifndef GPUSHARE_LEAVING_H
#define GPUSHARE_LEAVING_H

#include "interposer/process/process.h"

/* gs_movable_end, without a proxy from now on, once all work in `stream`, or if it is NULL in all streams of the current context, is done. */
void gs_movable_end_later(uint64_t address, uint64_t number, const CUstream *stream);
/* Ends those of gs_movable_end_later whose time has come. Returns whether others are left. */
bool gs_movable_settle(void);
/* The context has ended, and its memory with it; the charges of what was not freed before are the caller's to give back.
 * heir: not NULL if its memory ends with that one instead. */
void gs_movable_context_gone(CUcontext context, CUcontext heir);

#endif
