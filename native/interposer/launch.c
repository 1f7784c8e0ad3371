/* Submissions of compute work: kernels and graphs, and what copies.c and fills bring here. */
#include "around.h"

#define GS_CAPTURES(time) __atomic_load_n(&(time)->captures, __ATOMIC_ACQUIRE)

/* A stream that cannot be kept is gated all the same. */
static void gate_only(struct gs_time *time, CUstream stream) {
  int ordinal = gs_stream_device(stream);
  struct gs_time_device *device = ordinal == GS_NO_DEVICE ? NULL : &time->device[ordinal];
  if (device && device->meter &&
      (!(__atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE) & GS_LEASE_HELD) || device->local))
    gs_gate_wait(device, NULL);
}

static void charge_residency(struct gs_time_device *device, uint64_t now) {
  gs_biased_take(&device->lock);
  if (device->resident && now > device->resident_since)
    device->meter->busy += (double)(now - device->resident_since);
  device->resident = true;
  device->resident_since = now;
  __atomic_store_n(&device->slot->launches, device->slot->launches + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&device->slot->busy_ns, (uint64_t)device->meter->busy, __ATOMIC_RELAXED);
  __atomic_store_n(&device->slot->queue_end_ns, now + GS_METER_MARK_NS, __ATOMIC_RELAXED);
  gs_biased_drop(&device->lock);
}

void gs_submit(struct gs_submission *submission, uint64_t key, CUstream handle) {
  struct gs_time *time = gs_time();
  struct gs_time_device *device;
  struct gs_stream *stream;
  struct gs_meter *meter;
  bool waited = false;
  uint32_t lease;
  submission->stream = NULL;
  if (!time) {
    /* A context that was made behind our back, through the driver's private tables. */
    gs_time_start(gs_current_device());
    time = gs_time();
  }
  if (!time || (GS_CAPTURES(time) > 0 && gs_stream_capturing(handle)))
    return;
  stream = gs_stream_of(handle);
  if (!stream) {
    gate_only(time, handle);
    return;
  }
  device = stream->device;
  meter = device->meter;
  for (;;) {
    double bound;
    lease = __atomic_load_n(&device->limits->lease, __ATOMIC_ACQUIRE);
    if (!GS_LIKELY((lease & GS_LEASE_HELD) && !__atomic_load_n(&device->local, __ATOMIC_RELAXED)))
      lease = gs_gate_wait(device, stream);
    if (time->profiled) {
      charge_residency(device, gs_now());
      return;
    }
    bound = gs_bound(device);
    gs_biased_take(&device->lock);
    if (GS_LIKELY(waited || gs_meter_inflight(meter, bound) <= bound))
      break;
    gs_biased_drop(&device->lock);
    gs_bound_wait(device, stream, key);
    waited = true; /* the lease may have gone meanwhile */
  }
  submission->planned = gs_ticks_now(&device->ticks);
  submission->function = gs_queue_function(meter, &stream->queue, key);
  if (gs_meter_close_first(&stream->queue, submission->function, submission->planned)) {
    gs_biased_drop(&device->lock);
    gs_mark_record(stream, false);
    gs_biased_take(&device->lock);
    submission->planned = gs_ticks_now(&device->ticks);
    submission->function = gs_queue_function(meter, &stream->queue, key);
  }
  submission->estimate = submission->function->estimate;
  if (!GS_LIKELY(!gs_turn_passed(device, lease)))
    gs_notice_turn(device, lease, submission->planned);
  submission->plan = gs_meter_launch(meter, &stream->queue, submission->function, submission->planned, lease);
  submission->stream = stream;
  __atomic_store_n(&device->slot->launches, device->slot->launches + 1, __ATOMIC_RELAXED);
  if (stream->queue.end > device->slot->queue_end_ns)
    __atomic_store_n(&device->slot->queue_end_ns, stream->queue.end, __ATOMIC_RELAXED);
  gs_biased_drop(&device->lock);
  if (submission->plan & GS_PLAN_START)
    gs_mark_record(stream, true);
  if (submission->plan & GS_PLAN_SAMPLE)
    submission->planned = gs_now();
  if ((submission->plan & GS_PLAN_SAMPLE) && !gs_bracket_record(stream, 0))
    submission->plan &= ~(uint32_t)GS_PLAN_SAMPLE;
  if (submission->plan & GS_PLAN_SAMPLE)
    submission->began = gs_now();
}

void gs_submitted(struct gs_submission *submission, CUresult result) {
  struct gs_stream *stream = submission->stream;
  struct gs_time_device *device;
  if (!stream)
    return;
  device = stream->device;
  if (result != CUDA_SUCCESS) {
    gs_biased_take(&device->lock);
    gs_meter_undo(device->meter, &stream->queue, submission->function, submission->estimate);
    gs_biased_drop(&device->lock);
    return;
  }
  if (submission->plan & GS_PLAN_SAMPLE) {
    uint64_t ended = gs_now();
    if (gs_bracket_record(stream, 1)) {
      uint64_t closed = gs_now();
      gs_biased_take(&device->lock);
      gs_meter_sampling(&stream->queue, submission->function, submission->planned, submission->began, ended, closed);
      gs_biased_drop(&device->lock);
    }
  }
  if (submission->plan & GS_PLAN_MARK)
    gs_mark_record(stream, false);
}

/* ---- handlers ---- */

/* A kernel's time grows with its grid: each power of two of blocks is learned by itself. */
static uint64_t kernel_key(const void *function, unsigned int x, unsigned int y, unsigned int z) {
  uint64_t blocks = (uint64_t)x * y * z;
  uint64_t size = blocks ? 64 - (uint64_t)__builtin_clzll(blocks) : 0;
  return (uint64_t)(uintptr_t)function ^ size << 57;
}

uint64_t gs_kernel_key(CUfunction function, unsigned int x, unsigned int y, unsigned int z) {
  return kernel_key(function, x, y, z);
}

uint64_t gs_config_key(CUfunction function, const CUlaunchConfig *config) {
  return config ? kernel_key(function, config->gridDimX, config->gridDimY, config->gridDimZ) : 1;
}

uint64_t gs_graph_key(CUgraphExec graph) { return (uint64_t)(uintptr_t)graph; }

CUresult gs_before_submit(struct gs_around *around, uint64_t key, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->submission.stream = NULL;
  if (!gs_enter(&result))
    return result;
  gs_submit(&around->submission, key, stream);
  return CUDA_SUCCESS;
}

CUresult gs_after_submit(struct gs_around *around, CUresult result) {
  gs_submitted(&around->submission, result);
  return result;
}

/* One launch on several devices: each has to let it pass. */
CUresult gs_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int devices, unsigned int flags) {
  struct gs_submission submission[GS_MAX_DEVICES];
  struct gs_first first[GS_MAX_DEVICES];
  unsigned int looked = 0;
  unsigned int count = devices < GS_MAX_DEVICES ? devices : GS_MAX_DEVICES;
  CUresult result = CUDA_SUCCESS;
  if (!gs_enter(&result))
    return result != CUDA_SUCCESS ? result : gs_real.cuLaunchCooperativeKernelMultiDevice(list, devices, flags);
  if (!list)
    count = 0;
  for (result = CUDA_SUCCESS; looked < count && result == CUDA_SUCCESS; looked += result == CUDA_SUCCESS)
    result = gs_kernel_look(&first[looked], list[looked].function, list[looked].hStream);
  if (result != CUDA_SUCCESS) {
    while (looked > 0)
      gs_kernel_looked(&first[--looked], result);
    return result;
  }
  for (unsigned int i = 0; i < count; i++)
    gs_submit(&submission[i], kernel_key(list[i].function, list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ),
              list[i].hStream);
  result = gs_real.cuLaunchCooperativeKernelMultiDevice(list, devices, flags);
  for (unsigned int i = 0; i < count; i++)
    gs_submitted(&submission[i], result);
  for (unsigned int i = 0; i < count; i++)
    gs_kernel_looked(&first[i], result);
  return result;
}

CUresult gs_before_graph_changed(struct gs_around *around, CUgraphExec graph) {
  CUresult result = CUDA_SUCCESS;
  around->active = gs_enter(&result);
  around->key = gs_graph_key(graph);
  return result;
}

CUresult gs_after_graph_changed(struct gs_around *around, CUresult result) {
  if (around->active)
    gs_function_changed(around->key);
  return result;
}
