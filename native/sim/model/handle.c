/* Allocates the objects behind handles. */
#include "sim/model/handle.h"

#include <stdlib.h>
#include <string.h>

void *sim_handle_new(struct sim_kind *kind) {
  void *handle = kind->free_list;
  if (handle)
    kind->free_list = *(void **)((char *)handle + sizeof(void *));
  else
    handle = malloc(kind->bytes);
  if (handle == NULL)
    return NULL;
  memset(handle, 0, kind->bytes);
  *(uint32_t *)handle = kind->magic;
  return handle;
}

void sim_handle_free(struct sim_kind *kind, void *handle) {
  *(uint32_t *)handle = 0;
  *(void **)((char *)handle + sizeof(void *)) = kind->free_list;
  kind->free_list = handle;
}
