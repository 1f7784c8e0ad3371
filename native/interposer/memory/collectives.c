/* Collectives are recognised by the name of their kernels, when a program looks it up: a launch costs nothing more than
 * before, and one of a collective takes the way of a kernel that is launched for the first time (kernels.c). */
#include "interposer/memory/collectives.h"

#include <string.h>

#include "interposer/memory/books.h"
#include "interposer/process/device.h"

/* NCCL's kernels, also as C++ names them. */
static bool names_collective(const char *name) {
  static const char prefix[] = "ncclDevKernel";
  if (name && name[0] == '_' && name[1] == 'Z')
    for (name += 2; *name >= '0' && *name <= '9'; name++) {
    }
  return name && strncmp(name, prefix, sizeof prefix - 1) == 0;
}

static void mark(const void *function, bool is, const void *program, CUcontext context) {
  if (!function || (!is && !gs_collectives_known()) || (is && !gs_book_room(1)))
    return;
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_COLLECTIVE, (uintptr_t)function);
  if (known)
    gs_book_remove(known); /* the handle may have been another's */
  if (is)
    gs_book_add(&(struct gs_entry){.key = (uintptr_t)function,
                                   .kind = GS_BOOK_COLLECTIVE,
                                   .ordinal = GS_NO_DEVICE,
                                   .link = (uintptr_t)program,
                                   .context = context});
  gs_book_unlock();
  if (is)
    __atomic_add_fetch(&gs_process->collectives, 1, __ATOMIC_RELEASE);
}

void gs_collective_found(const void *function, const char *name, const void *program, CUcontext context) {
  mark(function, names_collective(name), program, context);
}

void gs_collective_same(const void *function, const void *kernel, const void *program) {
  if (function != kernel)
    mark(function, gs_collective(kernel), program, NULL);
}

void gs_collectives_gone(const void *program) {
  if (gs_collectives_known())
    gs_book_drop_link(GS_BOOK_COLLECTIVE, (uintptr_t)program);
}

bool gs_collective(const void *function) {
  if (!gs_collectives_known())
    return false;
  gs_book_lock();
  bool is = gs_book_find(GS_BOOK_COLLECTIVE, (uintptr_t)function) != NULL;
  gs_book_unlock();
  return is;
}
