/* Allocates marks and items. */
#include <stdlib.h>

#include "sim/model/model.h"

struct sim_mark *sim_mark_new(CUdevice device) {
  struct sim_mark *mark = calloc(1, sizeof *mark);
  if (mark)
    *mark = (struct sim_mark){.refs = 1, .device = device};
  return mark;
}

void sim_mark_release(struct sim_mark *mark) {
  if (mark && --mark->refs == 0)
    free(mark);
}

struct sim_item *sim_item_new(struct sim_stream *stream, enum sim_resource resource, uint64_t duration,
                              size_t payload_bytes) {
  struct sim_item *item = malloc(sizeof *item + payload_bytes);
  if (item == NULL)
    return NULL;
  *item = (struct sim_item){.stream = stream,
                            .resource = resource,
                            .duration = duration,
                            .remaining = duration,
                            .payload_bytes = payload_bytes};
  return item;
}
