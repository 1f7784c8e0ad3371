/* Tiles of sparse arrays. Requires sim_ranges_lock unless noted otherwise. */
#ifndef SIM_SPARSE_H
#define SIM_SPARSE_H

#include "sim/memory/memory.h"

struct physical;
struct sim_sparse; /* of an array, or of all levels of a mipmapped one */

/* levels: the descriptors of the levels. INVALID_VALUE if an array of that shape cannot be sparse. Call without the
 * lock. */
CUresult sim_sparse_new(const CUDA_ARRAY3D_DESCRIPTOR *levels, unsigned nlevels, struct sim_sparse **out);
/* Unmaps everything; NULL is ignored. Call without the lock; no work may be pending. */
void sim_sparse_free(struct sim_sparse *sparse);
CUDA_ARRAY_SPARSE_PROPERTIES sim_sparse_properties(const struct sim_sparse *sparse);

enum { SIM_TILE_DIMENSIONS = 3 };

/* One operation, which holds the memory until it is done. Units are tiles; a region of the tail uses the first
 * dimension only. */
struct sim_tile_operation {
  uint64_t sparse; /* its id: the array may be gone */
  struct physical *physical;
  uint64_t first;      /* tile of the level or tail */
  unsigned row, slice; /* tiles between two rows and two slices */
  unsigned from[SIM_TILE_DIMENSIONS], count[SIM_TILE_DIMENSIONS];
};
/* Reads and checks one element of a list, and adds a hold on its memory. */
CUresult sim_sparse_read(const struct sim_sparse *sparse, const CUarrayMapInfo *info, CUdevice device,
                         struct sim_tile_operation *op);
void sim_sparse_run(void *op); /* executes and ends the operation; sim_op.run, so called without the lock */
void sim_sparse_end(const struct sim_tile_operation *op);

/* arrays.c. The tiles of a live array or mipmapped array; NULL: it is not sparse, or not alive. */
struct sim_sparse *sim_array_sparse(CUarray array);
struct sim_sparse *sim_mipmapped_sparse(CUmipmappedArray mipmapped);

#endif
