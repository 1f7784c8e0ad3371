/* Events. A record creates a mark in a stream, and the event refers to its latest mark. Requires sim_lock unless noted
 * otherwise. */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "sim/model/model.h"

struct sim_event {
  uint32_t magic;
  unsigned flags;
  struct sim_ctx *ctx;
  uint64_t ctx_id;
  struct sim_shared_event *shared; /* an interprocess event, which has no mark */
  struct sim_mark *mark;           /* latest record outside captures; NULL: never recorded */
  /* set if last recorded into a capture: the nodes a wait for it depends on */
  struct sim_capture *capture;
  struct sim_graph_node **cap_deps;
  unsigned cap_ndeps;
  struct sim_event *cap_next; /* next event of the same capture */
};

CUresult sim_event_get(CUevent handle, struct sim_event **event); /* with or without the lock */
CUresult sim_event_new(struct sim_ctx *ctx, unsigned flags, struct sim_shared_event *shared, CUevent *handle);
void sim_event_free(struct sim_event *event);
/* For streams that are not capturing. */
CUresult sim_event_record(struct sim_event *event, struct sim_stream *stream);
CUresult sim_event_wait(struct sim_event *event, struct sim_stream *stream);
/* cuEventRecordWithFlags and cuStreamWaitEvent, for any stream. Call without sim_lock. */
CUresult sim_event_record_by_handle(CUevent handle, CUstream stream_handle, unsigned flags);
CUresult sim_event_wait_by_handle(CUstream stream_handle, CUevent handle, unsigned flags);

#endif
