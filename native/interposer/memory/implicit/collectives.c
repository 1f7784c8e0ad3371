/* Collectives are recognised by the name of their kernels when a program looks the kernel up, so other launches cost
 * nothing more. The launch of a collective takes the path of a kernel that is launched for the first time
 * (kernels.c). */
#include "interposer/memory/implicit/collectives.h"

#include <string.h>

#include "interposer/memory/books/books.h"
#include "interposer/process/device.h"
#include "interposer/process/greens.h"

/* NCCL's kernels, also with mangled C++ names. */
static bool names_collective(const char *name) {
  static const char prefix[] = "ncclDevKernel";
  if (name && name[0] == '_' && name[1] == 'Z')
    for (name += 2; *name >= '0' && *name <= '9'; name++) {
    }
  return name && strncmp(name, prefix, sizeof prefix - 1) == 0;
}

static void mark(const void *function, bool is, const void *program, CUcontext context) {
  struct gs_table *all = &gs_books()->collectives;
  if (!function || (!is && !gs_collectives_known()) || (is && !gs_table_room(all, 1)))
    return;
  struct gs_collective fresh = {(uintptr_t)function, (uintptr_t)program, gs_context_owner(context)};
  gs_table_lock(all);
  void *known = gs_table_find(all, fresh.function);
  if (known)
    gs_table_remove(all, known); /* the handle may have belonged to another function */
  if (is)
    gs_table_add(all, &fresh);
  gs_table_unlock(all);
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

static bool is_of(const void *collective, void *program) {
  return ((const struct gs_collective *)collective)->program == (uintptr_t)program;
}

void gs_collectives_gone(const void *program) {
  if (gs_collectives_known())
    gs_table_drop(&gs_books()->collectives, is_of, (void *)(uintptr_t)program);
}

bool gs_collective(const void *function) {
  struct gs_collective found;
  return gs_collectives_known() && gs_table_copy(&gs_books()->collectives, (uintptr_t)function, &found);
}
