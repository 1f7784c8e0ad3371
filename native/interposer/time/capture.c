#include "interposer/time/capture.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/process/trace.h"
#include "interposer/time/repeat.h"

enum { NOT_RELAXED = -1 };

bool gs_stream_capturing(CUstream handle) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  struct gs_time *time = gs_time();
  CUresult result;
  if (!time || __atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) == 0)
    return false;
  result = gs_real.cuStreamIsCapturing(handle ? handle : CU_STREAM_LEGACY, &status);
  /* The legacy stream during the capture of a blocking stream: a launch there is an error, which the driver reports. */
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return true;
  return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

int gs_capture_mode_push(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (__atomic_load_n(&gs_time()->captures, __ATOMIC_ACQUIRE) == 0)
    return NOT_RELAXED;
  return gs_real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : NOT_RELAXED;
}

void gs_capture_mode_pop(int previous) {
  CUstreamCaptureMode mode = previous;
  if (previous != NOT_RELAXED)
    gs_real.cuThreadExchangeStreamCaptureMode(&mode);
}

/* Threads that are reading marks now do not know of the new capture: wait until they have finished. */
static void let_readers_finish(struct gs_time *time) {
  for (uint32_t i = 0; i < GS_MAX_DEVICES; i++) {
    if (!time->device[i].meter)
      continue;
    gs_latch_take(&time->device[i].reaping);
    gs_latch_drop(&time->device[i].reaping);
  }
}

/* The handle of a per-thread stream does not identify it; the thread does. */
static int32_t thread_of(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (int32_t)syscall(SYS_gettid) : 0; }

/* Under `tables`. */
static struct gs_origin *origin_of(struct gs_time *time, CUstream stream, int32_t thread) {
  for (uint32_t i = 0; i < GS_TIME_CAPTURES; i++)
    if (time->origin[i].stream == stream && (!stream || time->origin[i].thread == thread))
      return &time->origin[i];
  return NULL;
}

void gs_capture_begins(struct gs_time *time) {
  __atomic_add_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
  gs_repeat_end(time);
  let_readers_finish(time);
}

void gs_capture_none(struct gs_time *time) { __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST); }

/* Without a place it counts as open for ever, which is slow but safe. */
void gs_capture_open(struct gs_time *time, CUstream stream, CUcontext context) {
  gs_latch_take(&time->tables);
  struct gs_origin *origin = origin_of(time, NULL, 0);
  if (origin)
    *origin = (struct gs_origin){stream, context, thread_of(stream)};
  gs_latch_drop(&time->tables);
  gs_trace(GS_TRACE_CAPTURE_BEGAN, GS_NO_DEVICE, __atomic_load_n(&time->captures, __ATOMIC_RELAXED), (uintptr_t)stream);
}

/* Under `tables`. */
static void close_origin(struct gs_time *time, struct gs_origin *origin) {
  uint32_t open = __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
  gs_trace(GS_TRACE_CAPTURE_ENDED, GS_NO_DEVICE, open, (uintptr_t)origin->stream);
  origin->stream = NULL;
}

void gs_capture_close(struct gs_time *time, CUstream stream) {
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
