/* The grant's memory as this process takes and gives it. */
#include "interposer.h"

#include <errno.h>

#include "page.h"

int gs_reserve(int ordinal, uint64_t bytes) {
  struct gs_process *state = gs_process;
  if (ordinal < 0 || (uint32_t)ordinal >= state->ndevices)
    return -ENOMEM;
  struct gs_pages pages = {state->limits, state->usage};
  gs_lock(&state->reserve_lock[ordinal]);
  int rc = gs_page_reserve(&pages, state->slot_index, (uint32_t)ordinal, bytes);
  gs_unlock(&state->reserve_lock[ordinal]);
  return rc;
}

void gs_give_back(int ordinal, uint64_t bytes) {
  struct gs_process *state = gs_process;
  if (bytes == 0 || ordinal < 0)
    return;
  struct gs_pages pages = {state->limits, state->usage};
  gs_page_give_back(&pages, state->slot_index, (uint32_t)ordinal, bytes);
}
