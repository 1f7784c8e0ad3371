/* Waiting for work and querying it. */
#include "rows.h"

static CUevent recorded(struct rows *r, CUstream on) {
  CUevent event = new_event(r);
  need(r, cuEventRecord(event, on), "record it");
  return event;
}

/* Starts a kernel in the stream. */
static void busy(struct rows *r, struct kernel *k, CUstream on) {
  kernel_ready(r, k, on);
  lease(r);
  need(r, cuLaunchKernel(k->function, 1, 1, 1, 1, 1, 1, 0, on, k->params, NULL), "a kernel");
}

void row_cuEventRecordWithFlags(struct rows *r) {
  CUstream on = stream(r);
  struct hold held = hold(r, on);
  CUevent event = new_event(r);
  done(r, start(r)->cuEventRecordWithFlags(event, given(r), 0));
  expect(r, cuEventQuery(event) == CUDA_ERROR_NOT_READY, "done before the stream's work");
  let_go(&held);
  need(r, cuEventSynchronize(event), "wait for it");
}

void row_cuCtxSynchronize_v2(struct rows *r) {
  struct kernel k;
  busy(r, &k, stream(r));
  done(r, start(r)->cuCtxSynchronize_v2(r->ctx));
  expect(r, cuStreamQuery(k.stream) == CUDA_SUCCESS, "work is left");
  kernel_ran(r, &k);
}

void row_cuStreamSynchronize(struct rows *r) {
  struct kernel k;
  busy(r, &k, stream(r));
  done(r, start(r)->cuStreamSynchronize(given(r)));
  expect(r, cuStreamQuery(k.stream) == CUDA_SUCCESS, "work is left");
  kernel_ran(r, &k);
}

void row_cuStreamQuery(struct rows *r) {
  CUstream on = stream(r);
  struct hold held = hold(r, on);
  done_with(r, CUDA_ERROR_NOT_READY, start(r)->cuStreamQuery(given(r)));
  let_go(&held);
  settle(r);
  done(r, start(r)->cuStreamQuery(given(r)));
}

void row_cuEventSynchronize(struct rows *r) {
  struct kernel k;
  busy(r, &k, stream(r));
  CUevent event = recorded(r, k.stream);
  done(r, start(r)->cuEventSynchronize(event));
  expect(r, cuStreamQuery(k.stream) == CUDA_SUCCESS, "work is left");
  kernel_ran(r, &k);
}

void row_cuEventQuery(struct rows *r) {
  CUstream on = stream(r);
  struct hold held = hold(r, on);
  CUevent event = recorded(r, on);
  done_with(r, CUDA_ERROR_NOT_READY, start(r)->cuEventQuery(event));
  let_go(&held);
  settle(r);
  done(r, start(r)->cuEventQuery(event));
}

/* A stream whose work is known to the meter; its handle may be reused later. */
static CUstream used_stream(struct rows *r, struct kernel *k) {
  CUstream made = NULL;
  context(r);
  need(r, cuStreamCreate(&made, 0), "a stream");
  busy(r, k, made);
  kernel_ran(r, k);
  return made;
}

static void streams_go_on(struct rows *r) {
  struct kernel k;
  busy(r, &k, stream(r));
  kernel_ran(r, &k);
}

void row_cuStreamDestroy_v2(struct rows *r) {
  struct kernel k;
  CUstream made = used_stream(r, &k);
  done(r, start(r)->cuStreamDestroy_v2(made));
  streams_go_on(r);
}

void row_cuEventDestroy_v2(struct rows *r) {
  CUevent event = recorded(r, stream(r));
  done(r, start(r)->cuEventDestroy_v2(event));
  need(r, cuEventSynchronize(recorded(r, r->stream)), "the next event");
}

static CUevent interprocess_event(struct rows *r) {
  CUevent event = NULL;
  context(r);
  need(r, cuEventCreate(&event, 2 | 4 /* no timing, interprocess */), "an event");
  return event;
}

void row_cuIpcGetEventHandle(struct rows *r) {
  CUipcEventHandle name;
  CUevent event = interprocess_event(r);
  done(r, start(r)->cuIpcGetEventHandle(&name, event));
  need(r, cuEventDestroy_v2(event), "destroy it");
}

/* The driver may refuse a handle of its own process. */
void row_cuIpcOpenEventHandle(struct rows *r) {
  CUipcEventHandle name;
  CUevent event = interprocess_event(r), opened = NULL;
  need(r, cuIpcGetEventHandle(&name, event), "its name");
  r->tentative = true;
  if (done(r, start(r)->cuIpcOpenEventHandle(&opened, name)))
    need(r, cuEventDestroy_v2(opened), "destroy it");
  need(r, cuEventDestroy_v2(event), "destroy the first");
}
