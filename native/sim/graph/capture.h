/* Events, captures and the graphs they write. All under sim_lock. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "sim/memory/memory.h"
#include "sim/model/model.h"

struct sim_event {
  uint32_t magic;
  unsigned flags;
  struct sim_ctx *ctx;
  uint64_t ctx_id;
  struct sim_shared_event *shared; /* of several processes; then there is no mark */
  struct sim_mark *mark;           /* latest record outside captures; NULL: never */
  /* last recorded into a capture: what a wait for it depends on */
  struct sim_capture *capture;
  struct sim_graph_node **cap_deps;
  unsigned cap_ndeps;
  struct sim_event *cap_next; /* of the same capture */
};

struct sim_graph;

struct sim_capture {
  uint64_t id;
  struct sim_graph *graph;
  bool own_graph; /* made by the capture, so freed when the capture fails */
  struct sim_stream *origin;
  uint64_t thread; /* who began it */
  int mode;
  bool invalid;
  struct sim_event *events;
  struct sim_capture *next;
};

/* event.c */
CUresult sim_event_get(CUevent handle, struct sim_event **event);
/* sim_lock held */
CUresult sim_event_new(struct sim_ctx *ctx, unsigned flags, struct sim_shared_event *shared, CUevent *handle);
CUresult sim_event_record(struct sim_event *event, struct sim_stream *stream);
CUresult sim_event_wait(struct sim_event *event, struct sim_stream *stream);

/* event_ipc.c: events of several processes; sim_lock held but for the last */
struct sim_shared_event *sim_shared_event_new(CUdevice device); /* NULL: no memory */
CUresult sim_shared_event_record(struct sim_shared_event *event, struct sim_stream *stream);
CUresult sim_shared_event_wait(struct sim_shared_event *event, struct sim_stream *stream);
bool sim_shared_event_done(struct sim_shared_event *event);
void sim_shared_event_sync(struct sim_shared_event *event, CUdevice device, bool blocking);

/* api/stream_ops.c, program/launch.c: ops whose parameters stay the caller's until submitted */
struct sim_op sim_host_op(const CUDA_HOST_NODE_PARAMS *params);
CUresult sim_kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_op *op);

/* capture.c */
void sim_event_uncapture(struct sim_event *event);
CUresult sim_capture_guard_locked(void);
void sim_capture_invalidate(struct sim_capture *capture);
CUresult sim_capture_append(struct sim_stream *stream, const struct sim_op *op);
/* May work be submitted to this stream now? IMPLICIT for the legacy stream while a blocking stream of its context
 * captures. */
CUresult sim_capture_implicit(struct sim_stream *stream);
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event, unsigned flags);
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags);
void sim_capture_stream_gone(struct sim_stream *stream);

#endif
