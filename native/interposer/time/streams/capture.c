#include "interposer/time/streams/capture.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/process/device.h"
#include "interposer/process/greens.h"
#include "interposer/process/trace.h"
#include "interposer/time/streams/repeat.h"

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
static uint64_t key_of(CUstream stream) {
  return stream == CU_STREAM_PER_THREAD ? (uint64_t)syscall(SYS_gettid) : (uintptr_t)stream;
}

bool gs_capture_joins(void) {
  struct gs_time *time = gs_time();
  if (!time || __atomic_load_n(&time->captures, __ATOMIC_SEQ_CST) == 0)
    return false;
  __atomic_add_fetch(&time->joining, 1, __ATOMIC_SEQ_CST);
  let_readers_finish(time);
  return true;
}

void gs_capture_joined(void) { __atomic_sub_fetch(&gs_time()->joining, 1, __ATOMIC_SEQ_CST); }

bool gs_capture_may_ask(CUstream handle) {
  struct gs_time *time = gs_time();
  return __atomic_load_n(&time->captures, __ATOMIC_SEQ_CST) == 0 ||
         (__atomic_load_n(&time->joining, __ATOMIC_SEQ_CST) == 0 && !gs_stream_capturing(handle));
}

void gs_capture_begins(struct gs_time *time) {
  __atomic_add_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
  gs_repeat_end(time);
  let_readers_finish(time);
  gs_captures_keep_off(time);
  gs_captures_let(time);
}

bool gs_captures_keep_off(struct gs_time *time) {
  gs_latch_take(&time->whole);
  return __atomic_load_n(&time->captures, __ATOMIC_SEQ_CST) == 0;
}

void gs_captures_let(struct gs_time *time) { gs_latch_drop(&time->whole); }

static void closed(struct gs_time *time, CUstream stream) {
  uint32_t open = __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
  gs_trace(GS_TRACE_CAPTURE_ENDED, GS_NO_DEVICE, open, (uintptr_t)stream);
}

void gs_capture_none(struct gs_time *time) { __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST); }

/* Without memory for the entry the capture counts as open for ever, which is slow but safe. */
void gs_capture_open(struct gs_time *time, CUstream stream, CUcontext context) {
  struct gs_origin origin = {key_of(stream), stream, context}, *before;
  gs_latch_take(&time->tables);
  /* the stream's last capture has ended, by whatever means */
  before = gs_table_find(&time->origins, origin.key);
  if (before) {
    *before = origin;
    __atomic_sub_fetch(&time->captures, 1, __ATOMIC_SEQ_CST);
  } else if (gs_table_room(&time->origins, 1)) {
    gs_table_add(&time->origins, &origin);
  }
  gs_latch_drop(&time->tables);
  gs_trace(GS_TRACE_CAPTURE_BEGAN, GS_NO_DEVICE, __atomic_load_n(&time->captures, __ATOMIC_RELAXED), (uintptr_t)stream);
}

void gs_capture_close(struct gs_time *time, CUstream stream) {
  struct gs_origin origin;
  gs_latch_take(&time->tables);
  if (gs_table_take(&time->origins, key_of(stream), &origin))
    closed(time, stream);
  gs_latch_drop(&time->tables);
}

static bool of_context(const void *record, void *context) {
  const struct gs_origin *origin = record;
  bool gone = origin->context == context || gs_context_owner(origin->context) == context;
  if (gone)
    closed(gs_time(), origin->stream);
  return gone;
}

void gs_captures_gone(CUcontext context) { gs_table_drop(&gs_time()->origins, of_context, context); }

static bool of_dead_thread(const void *record, void *unused) {
  const struct gs_origin *origin = record;
  bool gone = origin->stream == CU_STREAM_PER_THREAD && syscall(SYS_tgkill, getpid(), (int)origin->key, 0) < 0 &&
              errno == ESRCH;
  (void)unused;
  if (gone)
    closed(gs_time(), origin->stream);
  return gone;
}

void gs_captures_check(void) {
  struct gs_time *time = gs_time();
  int saved = errno;
  if (__atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) == 0)
    return;
  gs_latch_take(&time->tables);
  gs_table_drop(&time->origins, of_dead_thread, NULL);
  gs_latch_drop(&time->tables);
  errno = saved;
}
