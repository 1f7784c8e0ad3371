/* Movable memory that ends otherwise than at once. */
#ifndef GPUSHARE_LEAVING_H
#define GPUSHARE_LEAVING_H

#include "interposer/process/process.h"

/* gs_movable_end, without a proxy from now on, once all work in `stream`, or if it is NULL in all streams of its context,
 * is done. */
void gs_movable_end_later(uint64_t address, uint64_t number, const CUstream *stream);
/* Ends those of gs_movable_end_later whose time has come. Returns whether others are left. */
bool gs_movable_settle(void);
/* How many of them there are, whose memory is not given back yet. */
uint32_t gs_movable_leaving(void);
/* Before a call is refused for lack of memory: waits a moment until there are fewer. Returns whether there are. */
bool gs_movable_hurry(uint32_t before);
/* The context has ended, and its memory with it; the charges of what was not freed before are the caller's to give back.
 * heir: not NULL if its memory ends with that one instead. */
void gs_movable_context_gone(CUcontext context, CUcontext heir);

#endif
