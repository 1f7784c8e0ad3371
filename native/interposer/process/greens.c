#include "interposer/process/greens.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_SIZE = 64 /* places; doubled when they are taken */ };

/* The functions of this part are called with the list's lock held. */

static struct gs_green *find(const struct gs_green_list *list, CUcontext context) {
  for (uint32_t i = 0; i < list->used; i++)
    if (list->green[i].context == context)
      return &list->green[i];
  return NULL;
}

static bool grow(struct gs_green_list *list) {
  uint32_t size = list->size ? 2 * list->size : FIRST_SIZE;
  struct gs_green *bigger = gs_private_map(size * sizeof *bigger);
  if (!bigger)
    return false;
  if (list->green) {
    memcpy(bigger, list->green, list->used * sizeof *bigger);
    munmap(list->green, list->size * sizeof *bigger);
  }
  list->green = bigger;
  list->size = size;
  return true;
}

static void remove_one(struct gs_green_list *list, struct gs_green *green) { *green = list->green[--list->used]; }

/* ------------------------------------------------------------------------------------------------------------------ */

bool gs_green_room(void) {
  struct gs_green_list *list = &gs_process->greens;
  gs_lock(&list->lock);
  /* few threads are between here and gs_green_add: half of the places are kept for them */
  bool room = 2 * (list->used + 1) <= list->size || grow(list);
  gs_unlock(&list->lock);
  return room;
}

void gs_green_add(CUcontext context, CUcontext primary, int ordinal) {
  struct gs_green_list *list = &gs_process->greens;
  gs_lock(&list->lock);
  if (list->used < list->size || grow(list))
    list->green[list->used++] = (struct gs_green){context, primary, ordinal, list->ever + 1};
  __atomic_store_n(&list->ever, list->ever + 1, __ATOMIC_RELEASE);
  gs_unlock(&list->lock);
}

bool gs_green_find(CUcontext context, struct gs_green *found) {
  struct gs_green_list *list = &gs_process->greens;
  gs_lock(&list->lock);
  const struct gs_green *green = find(list, context);
  if (green)
    *found = *green;
  gs_unlock(&list->lock);
  return green != NULL;
}

void gs_green_remove(CUcontext context) {
  struct gs_green_list *list = &gs_process->greens;
  gs_lock(&list->lock);
  struct gs_green *green = find(list, context);
  if (green)
    remove_one(list, green);
  gs_unlock(&list->lock);
}

void gs_greens_remove(CUcontext primary) {
  struct gs_green_list *list = &gs_process->greens;
  gs_lock(&list->lock);
  for (uint32_t i = 0; i < list->used;)
    if (list->green[i].primary == primary)
      remove_one(list, &list->green[i]); /* the last one is here now: look again */
    else
      i++;
  gs_unlock(&list->lock);
}

CUcontext gs_context_owner(CUcontext context) {
  struct gs_green green;
  if (!context || __atomic_load_n(&gs_process->greens.ever, __ATOMIC_ACQUIRE) == 0)
    return context;
  return gs_green_find(context, &green) ? green.primary : context;
}

CUcontext gs_owner_current(void) {
  CUcontext context = NULL;
  return gs_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? gs_context_owner(context) : NULL;
}
