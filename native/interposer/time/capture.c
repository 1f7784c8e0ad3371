/* Stream captures. What is captured is not executed, so it is neither gated nor metered; and while any capture is open,
 * calls of ours in any thread must not disturb it. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/hooks/capture.h"
#include "interposer/process/trace.h"
#include "interposer/time/repeat.h"

enum { CAPTURE_NONE = 0, CAPTURE_RELAXED = 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */, NOT_RELAXED = -1 };

bool gs_stream_capturing(CUstream handle) {
  CUstreamCaptureStatus status = CAPTURE_NONE;
  struct gs_time *time = gs_time();
  CUresult result;
  if (!time || __atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) == 0)
    return false;
  result = gs_real.cuStreamIsCapturing(handle ? handle : CU_STREAM_LEGACY, &status);
  /* The legacy stream while a blocking stream is captured: a launch there is an error, the driver's to report. */
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return true;
  return result == CUDA_SUCCESS && status != CAPTURE_NONE;
}

int gs_relax(void) {
  CUstreamCaptureMode mode = CAPTURE_RELAXED;
  if (__atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) == 0)
    return NOT_RELAXED;
  return gs_real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : NOT_RELAXED;
}

void gs_unrelax(int previous) {
  CUstreamCaptureMode mode = previous;
  if (previous != NOT_RELAXED)
    gs_real.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Threads that are reading marks now did not know of the capture that begins: let them finish. */
static void let_readers_finish(struct gs_time *time) {
  for (uint32_t i = 0; i < GS_MAX_DEVICES; i++) {
    if (!time->device[i].meter)
      continue;
    gs_latch_take(&time->device[i].reaping);
    gs_latch_drop(&time->device[i].reaping);
  }
}

CUresult gs_before_capture_begin(struct gs_around_capture_begin *around, CUstream stream) {
  struct gs_time *time = gs_time();
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result) && time != NULL;
  around->stream = stream ? stream : CU_STREAM_LEGACY;
  if (around->active) {
    CUcontext current = NULL;
    int previous = gs_relax();
    gs_real.cuCtxGetCurrent(&current);
    around->context = gs_context_behind(around->stream, current);
    gs_unrelax(previous);
    __atomic_add_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
    gs_repeat_end(time);
    let_readers_finish(time);
  }
  return result;
}

/* The handle of a thread's own stream says nothing: the thread does. */
static int32_t thread_of(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (int32_t)syscall(SYS_gettid) : 0; }

/* Under `tables`. */
static struct gs_origin *origin_of(struct gs_time *time, CUstream stream, int32_t thread) {
  for (uint32_t i = 0; i < GS_TIME_CAPTURES; i++)
    if (time->origin[i].stream == stream && (!stream || time->origin[i].thread == thread))
      return &time->origin[i];
  return NULL;
}

/* Under `tables`. */
static void close_origin(struct gs_time *time, struct gs_origin *origin) {
  uint32_t open = __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
  gs_trace(GS_TRACE_CAPTURE_ENDED, GS_NO_DEVICE, open, (uintptr_t)origin->stream);
  origin->stream = NULL;
}

static void closed(struct gs_time *time, CUstream stream) {
  struct gs_origin *origin;
  gs_latch_take(&time->tables);
  if ((origin = origin_of(time, stream, thread_of(stream))))
    close_origin(time, origin);
  gs_latch_drop(&time->tables);
}

void gs_captures_gone(CUcontext context) {
  struct gs_time *time = gs_time();
  for (uint32_t i = 0; i < GS_TIME_CAPTURES; i++) {
    struct gs_origin *origin = &time->origin[i];
    if (origin->stream && (origin->context == context || gs_context_owner(origin->context) == context))
      close_origin(time, origin);
  }
}

void gs_captures_check(void) {
  struct gs_time *time = gs_time();
  int saved = errno;
  if (__atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) == 0)
    return;
  gs_latch_take(&time->tables);
  for (uint32_t i = 0; i < GS_TIME_CAPTURES; i++) {
    struct gs_origin *origin = &time->origin[i];
    if (origin->stream && origin->thread && syscall(SYS_tgkill, getpid(), origin->thread, 0) < 0 && errno == ESRCH)
      close_origin(time, origin);
  }
  gs_latch_drop(&time->tables);
  errno = saved;
}

CUresult gs_after_capture_begin(struct gs_around_capture_begin *around, CUresult result) {
  struct gs_time *time = gs_time();
  if (!around->active)
    return result;
  if (result != CUDA_SUCCESS) {
    __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
    return result;
  }
  gs_trace(GS_TRACE_CAPTURE_BEGAN, GS_NO_DEVICE, __atomic_load_n(&time->captures, __ATOMIC_RELAXED),
           (uintptr_t)around->stream);
  /* Without a place it counts as open for ever, which is slow and safe. */
  gs_latch_take(&time->tables);
  struct gs_origin *origin = origin_of(time, NULL, 0);
  if (origin)
    *origin = (struct gs_origin){around->stream, around->context, thread_of(around->stream)};
  gs_latch_drop(&time->tables);
  return result;
}

CUresult gs_before_capture_end(struct gs_around_capture_end *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result) && gs_time() != NULL;
  around->stream = stream ? stream : CU_STREAM_LEGACY;
  return result;
}

CUresult gs_after_capture_end(struct gs_around_capture_end *around, CUresult result) {
  /* An end can fail and leave the capture open (wrong thread) or closed (invalidated): ask. */
  if (around->active && (result == CUDA_SUCCESS || !gs_stream_capturing(around->stream)))
    closed(gs_time(), around->stream);
  return result;
}

CUresult gs_before_stream_gone(struct gs_around_stream_gone *around, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result) && gs_time() != NULL;
  around->stream = stream;
  if (around->active && stream)
    gs_stream_ending(stream);
  return result;
}

CUresult gs_after_stream_gone(struct gs_around_stream_gone *around, CUresult result) {
  if (around->active && around->stream && result == CUDA_SUCCESS) {
    closed(gs_time(), around->stream);
    gs_stream_forget(around->stream);
  }
  return result;
}
