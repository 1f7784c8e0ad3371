#include "interposer/hooks/memory/linear/reserved.h"

#include <errno.h>

#include "interposer/memory/books/charge.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/residency/leaving.h"

static int reserve(int ordinal, uint64_t bytes) {
  uint32_t leaving;
  int rc;
  do {
    leaving = gs_movable_leaving();
    rc = gs_reserve_here(ordinal, bytes);
  } while (rc == -ENOMEM && gs_movable_hurry(leaving));
  return rc;
}

CUresult gs_reserved_begin(struct gs_reserved *reserved, uint64_t bytes, bool plausible, bool *away) {
  CUcontext context = NULL;
  *away = false;
  reserved->bytes = bytes;
  reserved->ordinal = plausible ? gs_current_device() : GS_NO_DEVICE;
  if (reserved->ordinal == GS_NO_DEVICE) {
    reserved->bytes = 0;
    return CUDA_SUCCESS;
  }
  gs_real.cuCtxGetCurrent(&context);
  int rc = gs_table_room(&gs_books()->pointers, 1) ? reserve(reserved->ordinal, bytes) : -ENOMEM;
  *away = rc == -EAGAIN;
  if (rc < 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_maker_begin(&reserved->maker, &gs_books()->pointers_made, gs_context_owner(context));
  return CUDA_SUCCESS;
}

CUresult gs_reserved_await(struct gs_reserved *reserved, uint64_t bytes, bool plausible, struct gs_patience *patience) {
  CUresult result;
  bool away;
  do
    result = gs_reserved_begin(reserved, bytes, plausible, &away);
  while (away && gs_room_await(patience));
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : gs_no_room();
}

CUresult gs_reserved_end(const struct gs_reserved *reserved, CUresult result, uint64_t address) {
  if (reserved->ordinal == GS_NO_DEVICE)
    return result;
  if (result != CUDA_SUCCESS)
    gs_give_back(reserved->ordinal, reserved->bytes);
  else
    gs_life_put(&reserved->maker, &gs_books()->pointers,
                &(struct gs_allocation){.living.key = address,
                                        .bytes = reserved->bytes,
                                        .context = reserved->maker.context,
                                        .ordinal = reserved->ordinal,
                                        .kind = reserved->kind});
  gs_maker_end(&reserved->maker);
  return result;
}

bool gs_reserved_correct(struct gs_reserved *reserved, uint64_t bytes) {
  if (bytes <= reserved->bytes)
    gs_give_back(reserved->ordinal, reserved->bytes - bytes);
  else if (gs_reserve(reserved->ordinal, bytes - reserved->bytes, &(struct gs_patience){0}) < 0)
    return false;
  reserved->bytes = bytes;
  return true;
}
