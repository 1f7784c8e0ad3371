/* Memory of what a program knows by a handle. All under sim_lock. */
#ifndef SIM_HANDLE_H
#define SIM_HANDLE_H

#include <stddef.h>
#include <stdint.h>

/* Memory of a kind is recycled for the same kind only, so a stale handle is recognised and never faults. */
struct sim_kind {
  size_t bytes;
  uint32_t magic;
  void *free_list;
};
/* zeroed, first word = magic; NULL: no memory */
void *sim_handle_new(struct sim_kind *kind);
void sim_handle_free(struct sim_kind *kind, void *handle);

#endif
