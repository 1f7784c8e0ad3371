/* Sparse arrays: their memory is mapped tile by tile, in stream order, from physical memory, which lives as long as a
 * tile refers to it. The elements themselves are stored with the array: a tile only decides which memory is charged. */
#include "sim/memory/arrays/sparse.h"

#include <stdlib.h>
#include <string.h>

#include "sim/memory/physical/vmm.h"

enum { TILE = 65536, LEVELS_MAX = 21, DIMENSIONS = SIM_TILE_DIMENSIONS };

struct level {
  unsigned extent[DIMENSIONS], tiles[DIMENSIONS];
  uint64_t first; /* index of its first tile in the first layer */
};

struct sim_sparse {
  uint64_t id;
  unsigned tile[DIMENSIONS]; /* extent of a tile, in elements */
  unsigned layers, tail_level, nlevels;
  uint64_t per_layer, tail_tiles; /* numbers of tiles; those of the tail are the last ones of a layer */
  uint64_t ntiles;
  struct level level[LEVELS_MAX];
  struct sim_sparse *next;
  struct physical *at[]; /* NULL: not mapped */
};

/* Guarded by sim_ranges_lock. */
static struct {
  struct sim_sparse *sparse;
  uint64_t ids;
} all;

/* The standard shapes of a 64 KiB tile, indexed by the base-2 logarithm of the element size in bytes. */
static const unsigned flat_tile[][DIMENSIONS] = {
    {256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
static const unsigned deep_tile[][DIMENSIONS] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};

static bool layered(const CUDA_ARRAY3D_DESCRIPTOR *one) {
  return one->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

static void measure(struct sim_sparse *sparse, const CUDA_ARRAY3D_DESCRIPTOR *levels, unsigned nlevels) {
  uint64_t tail_bytes = 0;
  sparse->nlevels = sparse->tail_level = nlevels;
  sparse->layers = layered(levels) && levels->Depth ? (unsigned)levels->Depth : 1;
  for (unsigned i = 0; i < nlevels; i++) {
    struct level *level = &sparse->level[i];
    struct sim_array_view view;
    uint64_t tiles = 1;
    level->extent[0] = (unsigned)levels[i].Width;
    level->extent[1] = (unsigned)levels[i].Height;
    level->extent[2] = layered(levels) || levels[i].Depth == 0 ? 1 : (unsigned)levels[i].Depth;
    for (int d = 0; d < DIMENSIONS; d++) {
      if (nlevels > 1 && level->extent[d] < sparse->tile[d] && sparse->tail_level == nlevels)
        sparse->tail_level = i;
      level->tiles[d] = (level->extent[d] + sparse->tile[d] - 1) / sparse->tile[d];
      tiles *= level->tiles[d];
    }
    level->first = sparse->per_layer;
    if (i < sparse->tail_level)
      sparse->per_layer += tiles;
    else if (sim_array_layout(&levels[i], &view) == CUDA_SUCCESS)
      tail_bytes += view.row_bytes * view.rows * (layered(levels) ? 1 : view.layers);
  }
  sparse->tail_tiles = (tail_bytes + TILE - 1) / TILE;
  sparse->per_layer += sparse->tail_tiles;
  sparse->ntiles = sparse->per_layer * sparse->layers;
}

CUresult sim_sparse_new(const CUDA_ARRAY3D_DESCRIPTOR *levels, unsigned nlevels, struct sim_sparse **out) {
  struct sim_sparse shape = {0};
  struct sim_array_view view;
  if (levels->Height == 0 || nlevels > LEVELS_MAX || sim_array_layout(levels, &view) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned power = (unsigned)__builtin_ctzll(view.element_bytes);
  memcpy(shape.tile, levels->Depth && !layered(levels) ? deep_tile[power] : flat_tile[power], sizeof shape.tile);
  measure(&shape, levels, nlevels);
  struct sim_sparse *made = calloc(1, sizeof *made + shape.ntiles * sizeof(struct physical *));
  if (!made)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *made = shape;
  sim_ranges_lock();
  made->id = ++all.ids;
  made->next = all.sparse;
  all.sparse = made;
  sim_ranges_unlock();
  *out = made;
  return CUDA_SUCCESS;
}

static void set_tile(struct physical **at, struct physical *physical) {
  struct physical *before = *at;
  *at = physical;
  if (physical)
    physical->mappings++;
  if (before) {
    before->mappings--;
    sim_physical_check(before);
  }
}

void sim_sparse_free(struct sim_sparse *sparse) {
  if (!sparse)
    return;
  sim_ranges_lock();
  struct sim_sparse **link = &all.sparse;
  while (*link != sparse)
    link = &(*link)->next;
  *link = sparse->next;
  for (uint64_t i = 0; i < sparse->ntiles; i++)
    set_tile(&sparse->at[i], NULL);
  sim_ranges_unlock();
  free(sparse);
}

CUDA_ARRAY_SPARSE_PROPERTIES sim_sparse_properties(const struct sim_sparse *sparse) {
  return (CUDA_ARRAY_SPARSE_PROPERTIES){.tileExtent = {sparse->tile[0], sparse->tile[1], sparse->tile[2]},
                                        .miptailFirstLevel = sparse->tail_level,
                                        .miptailSize = sparse->tail_tiles * TILE};
}

/* ---- mapping ----------------------------------------------------------------------------------------------------- */

static bool tail_region(const struct sim_sparse *sparse, const CUarrayMapInfo *info, struct sim_tile_operation *op) {
  uint64_t offset = info->subresource.miptail.offset, size = info->subresource.miptail.size;
  uint64_t bytes = sparse->tail_tiles * TILE;
  if (info->subresource.miptail.layer >= sparse->layers || offset % TILE || size % TILE || size == 0 ||
      offset > bytes || size > bytes - offset)
    return false;
  op->first = (info->subresource.miptail.layer + 1) * sparse->per_layer - sparse->tail_tiles;
  op->from[0] = (unsigned)(offset / TILE);
  op->count[0] = (unsigned)(size / TILE);
  op->count[1] = op->count[2] = 1;
  return true;
}

static bool level_region(const struct sim_sparse *sparse, const CUarrayMapInfo *info, struct sim_tile_operation *op) {
  unsigned at = info->subresource.sparseLevel.level, layer = info->subresource.sparseLevel.layer;
  const unsigned from[] = {info->subresource.sparseLevel.offsetX, info->subresource.sparseLevel.offsetY,
                           info->subresource.sparseLevel.offsetZ};
  const unsigned extent[] = {info->subresource.sparseLevel.extentWidth, info->subresource.sparseLevel.extentHeight,
                             info->subresource.sparseLevel.extentDepth};
  if (at >= sparse->tail_level || layer >= sparse->layers)
    return false;
  const struct level *level = &sparse->level[at];
  for (int d = 0; d < DIMENSIONS; d++) {
    unsigned tile = sparse->tile[d];
    bool inside = from[d] < level->extent[d] && extent[d] <= level->tiles[d] * tile - from[d];
    bool edge = inside && from[d] + extent[d] >= level->extent[d]; /* the last tile may be incomplete */
    if (!inside || extent[d] == 0 || from[d] % tile || (extent[d] % tile && !edge))
      return false;
    op->from[d] = from[d] / tile;
    op->count[d] = (extent[d] + tile - 1) / tile;
  }
  op->first = layer * sparse->per_layer + level->first;
  op->row = level->tiles[0];
  op->slice = level->tiles[0] * level->tiles[1];
  return true;
}

static CUresult memory_of(const CUarrayMapInfo *info, CUdevice device, struct sim_tile_operation *op) {
  uint64_t bytes = (uint64_t)op->count[0] * op->count[1] * op->count[2] * TILE;
  if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
    return info->memHandle.memHandle ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP || info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC)
    return CUDA_ERROR_INVALID_VALUE;
  op->physical = sim_physical_of(info->memHandle.memHandle);
  if (!op->physical)
    return CUDA_ERROR_INVALID_HANDLE;
  bool fits =
      info->offset % TILE == 0 && info->offset <= op->physical->bytes && bytes <= op->physical->bytes - info->offset;
  return fits && !op->physical->multicast && sim_physical_device(&op->physical->prop) == device
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_sparse_read(const struct sim_sparse *sparse, const CUarrayMapInfo *info, CUdevice device,
                         struct sim_tile_operation *op) {
  bool tail = info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  memset(op, 0, sizeof *op);
  if (info->flags || info->reserved[0] || info->reserved[1] || info->deviceBitMask != 1u << device)
    return CUDA_ERROR_INVALID_VALUE;
  if (!tail && info->subresourceType != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!(tail ? tail_region(sparse, info, op) : level_region(sparse, info, op)))
    return CUDA_ERROR_INVALID_VALUE;
  op->sparse = sparse->id;
  CUresult result = memory_of(info, device, op);
  if (result == CUDA_SUCCESS && op->physical)
    op->physical->mappings++; /* until the operation is done */
  return result;
}

void sim_sparse_end(const struct sim_tile_operation *op) {
  if (!op->physical)
    return;
  op->physical->mappings--;
  sim_physical_check(op->physical);
}

void sim_sparse_run(void *payload) {
  struct sim_tile_operation op;
  memcpy(&op, payload, sizeof op);
  sim_ranges_lock();
  struct sim_sparse *sparse = all.sparse;
  while (sparse && sparse->id != op.sparse)
    sparse = sparse->next;
  for (unsigned z = 0; sparse && z < op.count[2]; z++)
    for (unsigned y = 0; y < op.count[1]; y++)
      for (unsigned x = 0; x < op.count[0]; x++)
        set_tile(&sparse->at[op.first + (uint64_t)(op.from[2] + z) * op.slice + (uint64_t)(op.from[1] + y) * op.row +
                             op.from[0] + x],
                 op.physical);
  sim_sparse_end(&op);
  sim_ranges_unlock();
}
