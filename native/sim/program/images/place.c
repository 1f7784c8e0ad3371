/* Records which parts of a loaded program are in which context. */
#include <stdlib.h>

#include "sim/program/images/image.h"
#include "sim/program/implicit.h"

static unsigned parts_locked(struct sim_image *image) {
  unsigned count = 0;
  for (const struct sim_function *function = image->functions; function; function = function->next)
    count++;
  if (image->parts == 0)
    image->parts = count;
  return image->parts ? image->parts : 1;
}

unsigned sim_image_parts(struct sim_image *image) {
  sim_lock();
  unsigned parts = parts_locked(image);
  sim_unlock();
  return parts;
}

static bool placed_locked(const struct sim_image *image, const struct sim_ctx *ctx, const void *part) {
  for (const struct sim_placed *placed = image->placed; placed; placed = placed->next)
    if (placed->ctx == ctx && placed->id == ctx->id && placed->part == part)
      return true;
  return false;
}

static CUresult place(struct sim_image *image, struct sim_ctx *ctx, const void *part) {
  bool code = part != image;
  sim_lock();
  if (placed_locked(image, ctx, part) || (code && placed_locked(image, ctx, NULL))) {
    sim_unlock();
    return CUDA_SUCCESS;
  }
  struct sim_placed *placed = malloc(sizeof *placed);
  unsigned parts = part ? parts_locked(image) : 1;
  uint64_t bytes = code ? (image->loaded.code + parts - 1) / parts : image->loaded.data;
  CUresult result = placed ? sim_code_load(ctx, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    *placed = (struct sim_placed){ctx, ctx->id, part, bytes, image->placed};
    image->placed = placed;
  } else {
    free(placed);
  }
  sim_unlock();
  return result;
}

static void displace(struct sim_image *image, struct sim_ctx *ctx, const void *part) {
  sim_lock();
  struct sim_placed **at = &image->placed;
  while (*at && !((*at)->ctx == ctx && (*at)->id == ctx->id && (*at)->part == part))
    at = &(*at)->next;
  struct sim_placed *gone = *at;
  if (gone) {
    *at = gone->next;
    sim_code_unload(ctx, gone->bytes);
    free(gone);
  }
  sim_unlock();
}

CUresult sim_image_place(struct sim_image *image, struct sim_ctx *ctx, const void *part) {
  sim_lock();
  bool had = placed_locked(image, ctx, image);
  sim_unlock();
  CUresult result = place(image, ctx, image);
  if (result == CUDA_SUCCESS && part != image)
    result = place(image, ctx, part);
  if (result && !had)
    displace(image, ctx, image);
  return result;
}

void sim_image_leave(struct sim_image *image) {
  sim_lock();
  for (struct sim_placed *placed = image->placed, *next; placed; placed = next) {
    next = placed->next;
    if (placed->ctx->alive && placed->ctx->id == placed->id)
      sim_code_unload(placed->ctx, placed->bytes);
    free(placed);
  }
  sim_unlock();
}
