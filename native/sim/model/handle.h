/* Allocates the objects behind a program's handles. Requires sim_lock. */
#ifndef SIM_HANDLE_H
#define SIM_HANDLE_H

#include <stddef.h>
#include <stdint.h>

/* Memory of one kind is reused only for the same kind, so a stale handle is recognised by its magic and never
 * faults. */
struct sim_kind {
  size_t bytes;
  uint32_t magic;
  void *free_list;
};
/* zeroed except for the magic in the first word; NULL: out of memory */
void *sim_handle_new(struct sim_kind *kind);
void sim_handle_free(struct sim_kind *kind, void *handle);

#endif
