/* Order between streams, and with the host: nothing here may wait for a lease, because the holder of the lease may wait
 * for it. */
#include "rows.h"

enum { SPINNING = 1 /* CU_HOST_TASK_SPINWAIT */ };

enum { OLD = 3, NEW = 77, ATTACH_GLOBAL = 1 };

/* A word on the device. */
static CUdeviceptr word(struct rows *r, uint64_t value) {
  CUdeviceptr at = memory(r, sizeof value);
  put(r, at, &value, sizeof value);
  return at;
}

static void became(struct rows *r, CUdeviceptr at, uint64_t value, size_t bytes) { holds(r, at, &value, bytes); }

/* A word of the host that a stream waits for. */
static uint64_t *host_word(struct rows *r, CUdeviceptr *at) {
  uint64_t *flag = NULL;
  context(r);
  need(r, cuMemHostAlloc((void **)&flag, sizeof *flag, 2), "a word of the host");
  need(r, cuMemHostGetDevicePointer_v2(at, flag, 0), "its address");
  *flag = OLD;
  return flag;
}

/* The stream waits until the word has its value. */
static void waits_for(struct rows *r, uint64_t *flag, CUstream on) {
  expect(r, cuStreamQuery(on) == CUDA_ERROR_NOT_READY, "the stream does not wait");
  __atomic_store_n(flag, NEW, __ATOMIC_RELEASE);
  need(r, cuStreamSynchronize(on), "the stream goes on");
}

void row_cuStreamWriteValue32(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue32(stream(r), at, NEW, 0)))
    became(r, at, NEW, 4);
}

void row_cuStreamWriteValue32_ptsz(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue32_ptsz(NULL, at, NEW, 0)))
    became(r, at, NEW, 4);
}

void row_cuStreamWriteValue32_v2(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue32_v2(stream(r), at, NEW, 0)))
    became(r, at, NEW, 4);
}

void row_cuStreamWriteValue32_v2_ptsz(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue32_v2_ptsz(NULL, at, NEW, 0)))
    became(r, at, NEW, 4);
}

void row_cuStreamWriteValue64(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue64(stream(r), at, NEW, 0)))
    became(r, at, NEW, 8);
}

void row_cuStreamWriteValue64_ptsz(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue64_ptsz(NULL, at, NEW, 0)))
    became(r, at, NEW, 8);
}

void row_cuStreamWriteValue64_v2(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue64_v2(stream(r), at, NEW, 0)))
    became(r, at, NEW, 8);
}

void row_cuStreamWriteValue64_v2_ptsz(struct rows *r) {
  CUdeviceptr at = word(r, OLD);
  if (done(r, start(r)->cuStreamWriteValue64_v2_ptsz(NULL, at, NEW, 0)))
    became(r, at, NEW, 8);
}

void row_cuStreamWaitValue32(struct rows *r) {
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue32(on, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, on);
}

void row_cuStreamWaitValue32_ptsz(struct rows *r) {
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue32_ptsz(NULL, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, CU_STREAM_PER_THREAD);
}

void row_cuStreamWaitValue32_v2(struct rows *r) {
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue32_v2(on, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, on);
}

void row_cuStreamWaitValue32_v2_ptsz(struct rows *r) {
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue32_v2_ptsz(NULL, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, CU_STREAM_PER_THREAD);
}

void row_cuStreamWaitValue64(struct rows *r) {
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue64(on, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, on);
}

void row_cuStreamWaitValue64_ptsz(struct rows *r) {
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue64_ptsz(NULL, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, CU_STREAM_PER_THREAD);
}

void row_cuStreamWaitValue64_v2(struct rows *r) {
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue64_v2(on, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, on);
}

void row_cuStreamWaitValue64_v2_ptsz(struct rows *r) {
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue64_v2_ptsz(NULL, at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, CU_STREAM_PER_THREAD);
}

/* Waits for a word of the host, then writes a word on the device. */
struct order {
  CUdeviceptr at;
  uint64_t *flag;
  CUstreamBatchMemOpParams steps[2];
};

static struct order order_of(struct rows *r) {
  struct order order = {.at = word(r, OLD)};
  CUdeviceptr from = 0;
  order.flag = host_word(r, &from);
  order.steps[0].value.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  order.steps[0].value.address = from;
  order.steps[0].value.value = NEW;
  order.steps[0].value.flags = CU_STREAM_WAIT_VALUE_EQ;
  order.steps[1].value.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  order.steps[1].value.address = order.at;
  order.steps[1].value.value = NEW;
  return order;
}

void row_cuStreamBatchMemOp(struct rows *r) {
  struct order order = order_of(r);
  CUstream on = stream(r);
  if (!done(r, start(r)->cuStreamBatchMemOp(on, 2, order.steps, 0)))
    return;
  waits_for(r, order.flag, on);
  became(r, order.at, NEW, 4);
}

void row_cuStreamBatchMemOp_ptsz(struct rows *r) {
  struct order order = order_of(r);
  if (!done(r, start(r)->cuStreamBatchMemOp_ptsz(NULL, 2, order.steps, 0)))
    return;
  waits_for(r, order.flag, CU_STREAM_PER_THREAD);
  became(r, order.at, NEW, 4);
}

void row_cuStreamBatchMemOp_v2(struct rows *r) {
  struct order order = order_of(r);
  CUstream on = stream(r);
  if (!done(r, start(r)->cuStreamBatchMemOp_v2(on, 2, order.steps, 0)))
    return;
  waits_for(r, order.flag, on);
  became(r, order.at, NEW, 4);
}

void row_cuStreamBatchMemOp_v2_ptsz(struct rows *r) {
  struct order order = order_of(r);
  if (!done(r, start(r)->cuStreamBatchMemOp_v2_ptsz(NULL, 2, order.steps, 0)))
    return;
  waits_for(r, order.flag, CU_STREAM_PER_THREAD);
  became(r, order.at, NEW, 4);
}

static void called(void *times) { __atomic_fetch_add((unsigned *)times, 1, __ATOMIC_RELEASE); }

static void called_back(CUstream on, CUresult status, void *times) {
  (void)on;
  __atomic_fetch_add((unsigned *)times, status == CUDA_SUCCESS, __ATOMIC_RELEASE);
}

static void once(struct rows *r, const unsigned *times) {
  settle(r);
  expect(r, __atomic_load_n(times, __ATOMIC_ACQUIRE) == 1, "the function was not called once");
}

void row_cuLaunchHostFunc(struct rows *r) {
  CUstream on = stream(r);
  unsigned times = 0;
  if (done(r, start(r)->cuLaunchHostFunc(on, called, &times)))
    once(r, &times);
  capture(r, on);
  done(r, start(r)->cuLaunchHostFunc(on, called, &times));
  captured(r, on, 1);
}

void row_cuLaunchHostFunc_ptsz(struct rows *r) {
  context(r);
  unsigned times = 0;
  if (done(r, start(r)->cuLaunchHostFunc_ptsz(NULL, called, &times)))
    once(r, &times);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuLaunchHostFunc_ptsz(NULL, called, &times));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuLaunchHostFunc_v2(struct rows *r) {
  CUstream on = stream(r);
  unsigned times = 0;
  if (done(r, start(r)->cuLaunchHostFunc_v2(on, called, &times, SPINNING)))
    once(r, &times);
  capture(r, on);
  done(r, start(r)->cuLaunchHostFunc_v2(on, called, &times, 0));
  captured(r, on, 1);
}

void row_cuLaunchHostFunc_v2_ptsz(struct rows *r) {
  context(r);
  unsigned times = 0;
  if (done(r, start(r)->cuLaunchHostFunc_v2_ptsz(NULL, called, &times, SPINNING)))
    once(r, &times);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuLaunchHostFunc_v2_ptsz(NULL, called, &times, 0));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuStreamAddCallback(struct rows *r) {
  CUstream on = stream(r);
  unsigned times = 0;
  if (done(r, start(r)->cuStreamAddCallback(on, called_back, &times, 0)))
    once(r, &times);
}

void row_cuStreamAddCallback_ptsz(struct rows *r) {
  CUstream on = CU_STREAM_PER_THREAD;
  unsigned times = 0;
  context(r);
  if (done(r, start(r)->cuStreamAddCallback_ptsz(on, called_back, &times, 0)))
    once(r, &times);
}

void row_cuStreamWaitEvent(struct rows *r) {
  CUstream first = stream(r), second = NULL;
  struct hold held = hold(r, first);
  CUevent event = NULL;
  need(r, cuStreamCreate(&second, 1), "another stream");
  need(r, cuEventCreate(&event, 0), "an event");
  need(r, cuEventRecord(event, first), "record it");
  done(r, start(r)->cuStreamWaitEvent(second, event, 0));
  need(r, cuLaunchHostFunc(second, called, &(unsigned){0}), "work after it");
  expect(r, cuStreamQuery(second) == CUDA_ERROR_NOT_READY, "the stream does not wait");
  let_go(&held);
  need(r, cuStreamSynchronize(second), "the stream goes on");
}

void row_cuStreamWaitEvent_ptsz(struct rows *r) {
  CUstream first = stream(r);
  struct hold held = hold(r, first);
  CUevent event = NULL;
  need(r, cuEventCreate(&event, 0), "an event");
  need(r, cuEventRecord(event, first), "record it");
  done(r, start(r)->cuStreamWaitEvent_ptsz(NULL, event, 0));
  need(r, cuLaunchHostFunc(CU_STREAM_PER_THREAD, called, &(unsigned){0}), "work after it");
  expect(r, cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY, "the stream does not wait");
  let_go(&held);
  need(r, cuStreamSynchronize(CU_STREAM_PER_THREAD), "the stream goes on");
}

void row_cuStreamAttachMemAsync(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemAllocManaged(&at, BYTES, ATTACH_GLOBAL), "managed memory");
  done(r, start(r)->cuStreamAttachMemAsync(stream(r), at, 0, ATTACH_GLOBAL));
  settle(r);
  memcpy((void *)(uintptr_t)at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
}

void row_cuStreamAttachMemAsync_ptsz(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemAllocManaged(&at, BYTES, ATTACH_GLOBAL), "managed memory");
  done(r, start(r)->cuStreamAttachMemAsync_ptsz(NULL, at, 0, ATTACH_GLOBAL));
  settle(r);
  memcpy((void *)(uintptr_t)at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
}
