/* Order between streams, and with the host: nothing here may wait for a lease, because the holder of the lease may wait
 * for it. */
#include "rows.h"

enum { SPINNING = 1 /* CU_HOST_TASK_SPINWAIT */, ATTACH_GLOBAL = 1 };
static const uint64_t OLD = 0x300000003, NEW = 77;

/* A word on the device. */
static CUdeviceptr word(struct rows *r) {
  CUdeviceptr at = memory(r, sizeof OLD);
  put(r, at, &OLD, sizeof OLD);
  return at;
}

/* NEW was written to its low half, or to all of it. */
static void became_new(struct rows *r, CUdeviceptr at, bool half) {
  const uint64_t wanted = half ? (OLD >> 32 << 32) | NEW : NEW;
  holds(r, at, &wanted, sizeof wanted);
}

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

void row_cuStreamWriteValue64_v2(struct rows *r) {
  CUdeviceptr at = word(r);
  if (done(r, start(r)->cuStreamWriteValue64_v2(given(r), at, NEW, 0)))
    became_new(r, at, strstr(r->row->base, "32") != NULL);
}

void row_cuStreamWaitValue64_v2(struct rows *r) {
  CUstream on = stream(r);
  CUdeviceptr at = 0;
  uint64_t *flag = host_word(r, &at);
  if (done(r, start(r)->cuStreamWaitValue64_v2(given(r), at, NEW, CU_STREAM_WAIT_VALUE_EQ)))
    waits_for(r, flag, on);
}

/* Waits for a word of the host, then writes a word on the device. */
struct order {
  CUdeviceptr at;
  uint64_t *flag;
  CUstreamBatchMemOpParams steps[2];
};

static struct order order_of(struct rows *r) {
  struct order order = {.at = word(r)};
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

void row_cuStreamBatchMemOp_v2(struct rows *r) {
  struct order order = order_of(r);
  CUstream on = stream(r);
  if (!done(r, start(r)->cuStreamBatchMemOp_v2(given(r), 2, order.steps, 0)))
    return;
  waits_for(r, order.flag, on);
  became_new(r, order.at, true);
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

void row_cuLaunchHostFunc_v2(struct rows *r) {
  unsigned times = 0;
  context(r);
  if (done(r, start(r)->cuLaunchHostFunc_v2(given(r), called, &times, SPINNING)))
    once(r, &times);
  capture(r, stream(r));
  done(r, start(r)->cuLaunchHostFunc_v2(given(r), called, &times, 0));
  captured(r, stream(r), 1);
}

void row_cuStreamAddCallback(struct rows *r) {
  unsigned times = 0;
  context(r);
  if (done(r, start(r)->cuStreamAddCallback(given(r), called_back, &times, 0)))
    once(r, &times);
}

void row_cuStreamWaitEvent(struct rows *r) {
  CUstream on = stream(r), other = NULL;
  need(r, cuStreamCreate(&other, 1), "another stream");
  struct hold held = hold(r, other);
  CUevent event = new_event(r);
  need(r, cuEventRecord(event, other), "record it");
  done(r, start(r)->cuStreamWaitEvent(given(r), event, 0));
  need(r, cuLaunchHostFunc(on, called, &(unsigned){0}), "work after it");
  expect(r, cuStreamQuery(on) == CUDA_ERROR_NOT_READY, "the stream does not wait");
  let_go(&held);
  need(r, cuStreamSynchronize(on), "the stream goes on");
}

void row_cuStreamAttachMemAsync(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemAllocManaged(&at, BYTES, ATTACH_GLOBAL), "managed memory");
  done(r, start(r)->cuStreamAttachMemAsync(given(r), at, 0, ATTACH_GLOBAL));
  settle(r);
  memcpy((void *)(uintptr_t)at, pattern(), BYTES);
  holds(r, at, pattern(), BYTES);
}
