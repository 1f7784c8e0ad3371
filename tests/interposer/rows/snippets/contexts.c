/* Contexts: each costs device memory. */
#include "rows.h"

/* The context is current and works; then it is destroyed. */
static void works(struct rows *r, CUcontext made) {
  CUcontext current = NULL;
  CUdeviceptr at = 0;
  need(r, cuCtxGetCurrent(&current), "the current context");
  expect(r, made && current == made, "a new context is not current");
  meet(r, "allocated");
  need(r, cuMemAlloc_v2(&at, BYTES), "memory in it");
  put(r, at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
}

static void gone(struct rows *r, CUcontext made) {
  need(r, cuCtxDestroy_v2(made), "destroy it");
  meet(r, "freed"); /* together with the memory allocated in it */
}

void row_cuCtxCreate_v2(struct rows *r) {
  CUcontext made = NULL;
  need(r, cuInit(0), "cuInit");
  if (!done(r, start(r)->cuCtxCreate_v2(&made, 0, r->device)))
    return;
  works(r, made);
  gone(r, made);
}

void row_cuCtxCreate_v3(struct rows *r) {
  CUcontext made = NULL;
  need(r, cuInit(0), "cuInit");
  if (!done(r, start(r)->cuCtxCreate_v3(&made, NULL, 0, 0, r->device)))
    return;
  works(r, made);
  gone(r, made);
}

void row_cuCtxCreate_v4(struct rows *r) {
  CUctxCreateParams plain = {0};
  CUcontext made = NULL;
  need(r, cuInit(0), "cuInit");
  if (!done(r, start(r)->cuCtxCreate_v4(&made, &plain, 0, r->device)))
    return;
  works(r, made);
  gone(r, made);
}

static CUcontext full_context(struct rows *r) {
  CUcontext made = NULL;
  CUdeviceptr at = 0;
  need(r, cuInit(0), "cuInit");
  need(r, cuCtxCreate_v2(&made, 0, r->device), "a context");
  need(r, cuMemAlloc_v2(&at, BYTES), "memory in it");
  meet(r, "allocated");
  return made;
}

void row_cuCtxDestroy_v2(struct rows *r) {
  CUcontext made = full_context(r), current = NULL;
  done(r, start(r)->cuCtxDestroy_v2(made));
  meet(r, "freed");
  need(r, cuCtxGetCurrent(&current), "the current context");
  expect(r, current != made, "a dead context is current");
}

void row_cuCtxAttach(struct rows *r) {
  CUcontext made = full_context(r), again = NULL;
  done(r, start(r)->cuCtxAttach(&again, 0));
  expect(r, again == made, "attached to another");
  meet(r, "allocated");
  need(r, cuCtxDetach(made), "detach it once");
  meet(r, "allocated"); /* still */
  need(r, cuCtxDetach(made), "detach it twice");
  meet(r, "freed");
}

void row_cuCtxDetach(struct rows *r) {
  CUcontext made = full_context(r), again = NULL;
  need(r, cuCtxAttach(&again, 0), "attach to it");
  expect(r, again == made, "attached to another");
  done(r, start(r)->cuCtxDetach(made));
  meet(r, "allocated"); /* still */
  done(r, start(r)->cuCtxDetach(made));
  meet(r, "freed");
}

/* ---- the primary context ---- */

static CUcontext retained(struct rows *r) {
  CUcontext primary = NULL;
  need(r, cuInit(0), "cuInit");
  need(r, cuDevicePrimaryCtxRetain(&primary, r->device), "the primary context");
  need(r, cuCtxSetCurrent(primary), "make it current");
  return primary;
}

static void inactive(struct rows *r) {
  unsigned flags;
  int active = -1;
  need(r, cuDevicePrimaryCtxGetState(r->device, &flags, &active), "its state");
  expect(r, active == 0, "the primary context is active");
  need(r, cuCtxSetCurrent(NULL), "no context");
}

void row_cuDevicePrimaryCtxRetain(struct rows *r) {
  CUcontext primary = NULL, again = NULL;
  need(r, cuInit(0), "cuInit");
  if (!done(r, start(r)->cuDevicePrimaryCtxRetain(&primary, r->device)))
    return;
  done(r, start(r)->cuDevicePrimaryCtxRetain(&again, r->device));
  expect(r, primary == again, "two primary contexts");
  need(r, cuCtxSetCurrent(primary), "make it current");
  works(r, primary); /* charged once */
  need(r, cuDevicePrimaryCtxRelease_v2(r->device), "release it");
  need(r, cuDevicePrimaryCtxRelease_v2(r->device), "release it again");
  meet(r, "freed");
  inactive(r);
}

void row_cuDevicePrimaryCtxRelease_v2(struct rows *r) {
  works(r, retained(r));
  done(r, start(r)->cuDevicePrimaryCtxRelease_v2(r->device));
  meet(r, "freed");
  done_with(r, CUDA_ERROR_INVALID_CONTEXT, start(r)->cuDevicePrimaryCtxRelease_v2(r->device));
  inactive(r);
}

void row_cuDevicePrimaryCtxReset_v2(struct rows *r) {
  works(r, retained(r));
  done(r, start(r)->cuDevicePrimaryCtxReset_v2(r->device));
  meet(r, "freed");
  inactive(r);
}

/* ---- green contexts: partitions of a primary one ---- */

enum { RESOURCE_SM = 1, DEFAULT_STREAM = 1 };

/* All multiprocessors of the device as a green context's resources; NULL if the driver does not support them. */
static CUdevResourceDesc resources(struct rows *r) {
  uint64_t room[64] = {0};
  void *resource = room;
  CUdevResourceDesc made = NULL;
  retained(r);
  r->tentative = true;
  if (cuDeviceGetDevResource(r->device, resource, RESOURCE_SM) != CUDA_SUCCESS)
    return NULL;
  return cuDevResourceGenerateDesc(&made, resource, 1) == CUDA_SUCCESS ? made : NULL;
}

static CUgreenCtx green(struct rows *r) {
  CUdevResourceDesc all = resources(r);
  CUgreenCtx made = NULL;
  if (cuGreenCtxCreate(&made, all, r->device, DEFAULT_STREAM) != CUDA_SUCCESS)
    return NULL;
  r->tentative = false;
  return made;
}

static void no_green(struct rows *r, CUgreenCtx made) {
  if (made)
    need(r, cuGreenCtxDestroy(made), "destroy the green context");
  need(r, cuDevicePrimaryCtxRelease_v2(r->device), "release the primary context");
  meet(r, "freed");
  inactive(r);
}

void row_cuGreenCtxCreate(struct rows *r) {
  CUdevResourceDesc all = resources(r);
  CUgreenCtx made = NULL;
  done(r, start(r)->cuGreenCtxCreate(&made, all, r->device, DEFAULT_STREAM));
  meet(r, "allocated");
  no_green(r, made);
}

void row_cuGreenCtxDestroy(struct rows *r) {
  CUgreenCtx made = green(r);
  meet(r, "allocated");
  done(r, start(r)->cuGreenCtxDestroy(made));
  no_green(r, NULL);
}

void row_cuGreenCtxRecordEvent(struct rows *r) {
  CUgreenCtx made = green(r);
  CUevent event = new_event(r);
  if (done(r, start(r)->cuGreenCtxRecordEvent(made, event))) {
    need(r, cuEventSynchronize(event), "wait for the event");
    need(r, cuEventQuery(event), "the event is done");
  }
  need(r, cuEventDestroy_v2(event), "destroy the event");
  no_green(r, made);
}

void row_cuGreenCtxWaitEvent(struct rows *r) {
  CUgreenCtx made = green(r);
  CUevent event = new_event(r);
  need(r, cuEventRecord(event, NULL), "record it");
  done(r, start(r)->cuGreenCtxWaitEvent(made, event));
  settle(r);
  need(r, cuEventDestroy_v2(event), "destroy the event");
  no_green(r, made);
}

/* ---- events of whole contexts ---- */

void row_cuCtxRecordEvent(struct rows *r) {
  struct hold held = hold(r, stream(r));
  CUevent event = new_event(r);
  done(r, start(r)->cuCtxRecordEvent(r->ctx, event));
  expect(r, cuEventQuery(event) == CUDA_ERROR_NOT_READY, "done before the context's work");
  let_go(&held);
  need(r, cuEventSynchronize(event), "wait for the event");
}

void row_cuCtxWaitEvent(struct rows *r) {
  CUstream first = stream(r), second = NULL;
  struct hold held = hold(r, first);
  need(r, cuStreamCreate(&second, 1), "another stream");
  CUevent event = new_event(r);
  need(r, cuEventRecord(event, first), "record it");
  done(r, start(r)->cuCtxWaitEvent(r->ctx, event));
  need(r, cuEventRecord(event, second), "what comes after it");
  expect(r, cuStreamQuery(second) == CUDA_ERROR_NOT_READY, "the context did not wait");
  let_go(&held);
  settle(r);
}
