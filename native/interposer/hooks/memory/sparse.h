/* Sparse arrays: calls that map memory into them. */
#ifndef GPUSHARE_HOOKS_SPARSE_H
#define GPUSHARE_HOOKS_SPARSE_H

#include "interposer/memory/physical/uses.h"

/* To be called before an array without memory is made (false: out of memory), and after; the latter returns the number
 * of its mapping (gs_mapping.made). */
bool gs_unbacked_room(void);
uint64_t gs_unbacked_made(uint64_t array, const struct gs_maker *maker);

struct gs_around_map_array {
  const CUarrayMapInfo *list; /* NULL: nothing has begun */
  uint32_t count;
  struct gs_use use;
};
CUresult gs_before_map_array(struct gs_around_map_array *around, const CUarrayMapInfo *list, unsigned int count);
CUresult gs_after_map_array(struct gs_around_map_array *around, CUresult result);

#endif
