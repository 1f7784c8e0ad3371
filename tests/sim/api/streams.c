/* Order and times. The model's times are exact, so most checks test for equality. */
#include "client.h"

static const uint64_t US = 1000, MS = 1000000;

static void back_to_back(const struct client *c) {
  CUevent a, b;
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  gate_close(c, NULL);
  OK(cuEventRecord(a, NULL));
  EXPECT(cuEventQuery(a), CUDA_ERROR_NOT_READY);
  for (int i = 0; i < 100; i++)
    spin(c, 12345, NULL);
  OK(cuEventRecord(b, NULL));
  EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
  uint64_t start = now_ns();
  gate_open();
  OK(cuEventSynchronize(b));
  CHECK(now_ns() - start >= 1234500);
  OK(cuStreamQuery(NULL));
  CHECK(is_time(between(a, b), 1234500));
}

/* Kernels of two streams share the device: no work is lost, and none runs at twice the speed. */
static void two_streams(const struct client *c) {
  CUstream x, y;
  CUevent begin, ex, ey;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&begin, 0));
  OK(cuEventCreate(&ex, 0));
  OK(cuEventCreate(&ey, 0));
  gate_close(c, x);
  OK(cuEventRecord(begin, x));
  OK(cuStreamWaitEvent(y, begin, 0));
  for (int i = 0; i < 10; i++) {
    spin(c, 100 * US, x);
    spin(c, 100 * US, y);
  }
  OK(cuEventRecord(ex, x));
  OK(cuEventRecord(ey, y));
  gate_open();
  OK(cuCtxSynchronize());
  double tx = between(begin, ex), ty = between(begin, ey);
  CHECK(is_time(tx > ty ? tx : ty, 2 * MS));
  CHECK(is_time(tx > ty ? ty : tx, 1.9 * MS)); /* time-sliced */
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(y));
}

/* The legacy stream waits for blocking streams and they for it; non-blocking streams do neither. */
static void legacy_order(const struct client *c) {
  CUstream blocking, free_;
  CUevent e1, e2, e3, e4;
  OK(cuStreamCreate(&blocking, 0));
  OK(cuStreamCreate(&free_, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&e1, 0));
  OK(cuEventCreate(&e2, 0));
  OK(cuEventCreate(&e3, 0));
  OK(cuEventCreate(&e4, 0));
  gate_close(c, blocking);
  OK(cuEventRecord(e1, blocking));
  spin(c, 1 * MS, NULL);
  OK(cuEventRecord(e2, NULL));
  spin(c, 1 * MS, blocking);
  OK(cuEventRecord(e3, blocking));
  OK(cuEventRecord(e4, free_)); /* nothing to wait for */
  OK(cuEventSynchronize(e4));
  EXPECT(cuEventQuery(e1), CUDA_ERROR_NOT_READY);
  EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
  gate_open();
  OK(cuStreamSynchronize(blocking));
  CHECK(is_time(between(e1, e2), 1 * MS));
  CHECK(is_time(between(e2, e3), 1 * MS));
  CHECK(between(e4, e1) > 0);
  OK(cuStreamSynchronize(NULL));
  OK(cuStreamDestroy_v2(blocking));
  OK(cuStreamDestroy_v2(free_));
}

static void *own_stream_id(void *arg) {
  unsigned long long *id = arg;
  OK(cuCtxSetCurrent((CUcontext)(uintptr_t)id[1]));
  OK(cuStreamGetId_ptsz(NULL, &id[0]));
  return NULL;
}

static void per_thread(const struct client *c) {
  unsigned long long here, legacy, there[2] = {0, (uintptr_t)c->ctx};
  pthread_t thread;
  uint64_t ns = 1000;
  void *params[] = {&ns};
  OK(cuStreamGetId(NULL, &legacy));
  OK(cuStreamGetId_ptsz(NULL, &here));
  pthread_create(&thread, NULL, own_stream_id, there);
  pthread_join(thread, NULL);
  CHECK(legacy != here && here != there[0] && legacy != there[0]);
  OK(cuLaunchKernel_ptsz(c->spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  OK(cuStreamSynchronize_ptsz(NULL));
  OK(cuStreamGetId_ptsz(CU_STREAM_LEGACY, &here));
  CHECK(legacy == here);
}

/* ---- host functions ---------------------------------------------------------------------------------------------- */

struct note {
  CUevent before;
  int order, *next;
  uint64_t at;
  CUresult inside;
};

static void take_note(void *data) {
  struct note *note = data;
  CUstream stream;
  note->order = *note->next + 1;
  note->at = now_ns();
  note->inside = cuStreamCreate(&stream, 0);
  __atomic_store_n(note->next, note->order, __ATOMIC_RELEASE);
}

static void take_note_callback(CUstream stream, CUresult status, void *data) {
  (void)stream;
  CHECK(status == CUDA_SUCCESS);
  take_note(data);
}

/* They run in stream order while the program makes no calls; the stream waits for them. */
static void host_functions(const struct client *c) {
  int next = 0;
  struct note first = {.next = &next}, second = {.next = &next};
  CUstream stream;
  CUevent a, b;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  OK(cuEventRecord(a, stream));
  uint64_t start = now_ns();
  spin(c, 5 * MS, stream);
  OK(cuLaunchHostFunc(stream, take_note, &first));
  OK(cuStreamAddCallback(stream, take_note_callback, &second, 0));
  spin(c, 1 * MS, stream);
  OK(cuEventRecord(b, stream));
  CHECK(__atomic_load_n(&next, __ATOMIC_ACQUIRE) == 0);
  while (__atomic_load_n(&next, __ATOMIC_ACQUIRE) < 2)
    CHECK(now_ns() - start < 5000 * MS);
  CHECK(first.order == 1 && second.order == 2);
  CHECK(first.at - start >= 5 * MS);
  CHECK(first.inside == CUDA_ERROR_NOT_PERMITTED);
  OK(cuStreamSynchronize(stream));
  CHECK(between(a, b) >= 6 * MS);
  OK(cuStreamDestroy_v2(stream));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void values(const struct client *c) {
  CUstream x, y;
  CUdeviceptr memory;
  CUevent begun, done;
  unsigned *flag;
  CUdeviceptr flag_address;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&begun, 0));
  OK(cuEventCreate(&done, 0));
  OK(cuMemAlloc_v2(&memory, 4096));
  OK(cuMemsetD8_v2(memory, 0, 4096));
  /* the wait is queued before the write: only memory orders them */
  OK(cuStreamWaitValue32_v2(x, memory, 7, CU_STREAM_WAIT_VALUE_EQ));
  spin(c, 100 * US, x);
  OK(cuEventRecord(done, x));
  OK(cuEventRecord(begun, y));
  spin(c, 2 * MS, y);
  EXPECT(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  OK(cuStreamWriteValue32_v2(y, memory, 7, 0));
  OK(cuEventSynchronize(done));
  CHECK(between(begun, done) >= 2 * MS);
  /* written by the CPU */
  OK(cuMemHostAlloc((void **)&flag, 4096, 2));
  OK(cuMemHostGetDevicePointer_v2(&flag_address, flag, 0));
  *flag = 0;
  OK(cuStreamWaitValue32(x, flag_address, 5, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuEventRecord(done, x));
  EXPECT(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  __atomic_store_n(flag, 6, __ATOMIC_RELEASE);
  OK(cuEventSynchronize(done));
  /* and read by the CPU, without further driver calls */
  spin(c, 2 * MS, y);
  OK(cuStreamWriteValue64_v2(y, flag_address + 8, 1ull << 40, 0));
  uint64_t start = now_ns(), *wide = (uint64_t *)(flag + 2);
  while (__atomic_load_n(wide, __ATOMIC_ACQUIRE) != 1ull << 40)
    CHECK(now_ns() - start < 5000 * MS);
  EXPECT(cuStreamWaitValue32(x, flag_address + 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuStreamWriteValue32(x, 16, 0, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxSynchronize());
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(y));
  OK(cuMemFree_v2(memory));
  OK(cuMemFreeHost(flag));
}

/* A memory barrier delays what follows it in its stream, and no other stream. */
static void barriers(const struct client *c) {
  enum { BARRIERS = 256 };
  static CUstreamBatchMemOpParams params[BARRIERS];
  CUstream x, y;
  CUevent before, after, kernel;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&before, 0));
  OK(cuEventCreate(&after, 0));
  OK(cuEventCreate(&kernel, 0));
  for (int i = 0; i < BARRIERS; i++)
    params[i].operation = CU_STREAM_MEM_OP_BARRIER;
  gate_close(c, x);
  OK(cuEventRecord(before, x));
  OK(cuStreamBatchMemOp_v2(x, BARRIERS, params, 0));
  OK(cuEventRecord(after, x));
  gate_open();
  spin(c, 10 * US, y);
  OK(cuEventRecord(kernel, y));
  OK(cuCtxSynchronize());
  CHECK(between(before, after) >= BARRIERS * US / 2);
  OK(cuEventDestroy_v2(before));
  OK(cuEventDestroy_v2(after));
  OK(cuEventDestroy_v2(kernel));
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(y));
}

/* Copies run in parallel with kernels, on their own engines. */
static void copies_beside(const struct client *c) {
  enum { BYTES = 4 << 20 };
  CUstream x, y;
  CUdeviceptr memory;
  CUevent a, b, kernel;
  void *host;
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&a, 0));
  OK(cuEventCreate(&b, 0));
  OK(cuEventCreate(&kernel, 0));
  OK(cuMemAlloc_v2(&memory, BYTES));
  OK(cuMemAllocHost_v2(&host, BYTES));
  memset(host, 0x5a, BYTES);
  gate_close(c, y);
  OK(cuEventRecord(a, y));
  OK(cuMemcpyHtoDAsync_v2(memory, host, BYTES, y));
  OK(cuEventRecord(b, y));
  spin(c, 100 * US, x);
  OK(cuStreamWaitEvent(x, a, 0));
  spin(c, 10 * MS, x);
  OK(cuEventRecord(kernel, x));
  gate_open();
  OK(cuEventSynchronize(kernel));
  CHECK(between(a, kernel) > 10 * MS - 1 && between(b, kernel) > 5 * MS);
  CHECK(between(a, b) >= BYTES / 25 && between(a, b) < BYTES / 25 + 10 * US); /* 25 GB/s */
  OK(cuCtxSynchronize());
  OK(cuStreamDestroy_v2(x));
  OK(cuStreamDestroy_v2(y));
  OK(cuMemFree_v2(memory));
  OK(cuMemFreeHost(host));
}

/* A destroyed stream completes its queued work. */
static void destroyed_stream(const struct client *c) {
  CUstream stream;
  CUevent event;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  gate_close(c, stream);
  OK(cuEventRecord(event, stream));
  OK(cuStreamDestroy_v2(stream));
  EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate_open();
  OK(cuEventSynchronize(event));
  OK(cuEventDestroy_v2(event));
}

static int filled;

static void *open_when_filled(void *arg) {
  while (!__atomic_load_n(&filled, __ATOMIC_ACQUIRE))
    usleep(1000);
  usleep(20000); /* time in which the launch must not be accepted */
  gate_open();
  return arg;
}

/* A stream's queue is bounded (1024 items): a launch blocks until there is room. */
static void bounded_queue(const struct client *c) {
  CUstream stream;
  pthread_t opener;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  gate_close(c, stream); /* two items */
  for (int i = 0; i < 1022; i++)
    spin(c, 1000, stream);
  CHECK(*gate_flag == 0);
  pthread_create(&opener, NULL, open_when_filled, NULL);
  __atomic_store_n(&filled, 1, __ATOMIC_RELEASE);
  spin(c, 1000, stream);
  CHECK(__atomic_load_n(gate_flag, __ATOMIC_ACQUIRE) == 1);
  pthread_join(opener, NULL);
  OK(cuStreamSynchronize(stream));
  OK(cuStreamDestroy_v2(stream));
}

/* Work of two devices in one process, ordered by an event. */
static void two_devices(const struct client *c) {
  CUcontext other;
  CUmodule module;
  CUfunction function;
  CUstream x, y;
  CUevent event, done;
  uint64_t ns = 1 * MS;
  void *params[] = {&ns};
  OK(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  OK(cuCtxCreate_v2(&other, 0, 1));
  OK(cuModuleLoadData(&module, spin_ptx));
  OK(cuModuleGetFunction(&function, module, "spin_ns"));
  OK(cuStreamCreate(&y, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&done, 0));
  EXPECT(cuEventRecord(event, y), CUDA_ERROR_INVALID_HANDLE);
  OK(cuCtxPushCurrent_v2(c->ctx));
  gate_close(c, x);
  OK(cuCtxPopCurrent_v2(NULL));
  OK(cuEventRecord(event, x));
  OK(cuStreamWaitEvent(y, event, 0));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, y, params, NULL));
  OK(cuEventRecord(done, y));
  EXPECT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  gate_open();
  OK(cuEventSynchronize(done));
  OK(cuEventQuery(event));
  OK(cuCtxDestroy_v2(other));
}

/* A stream may be destroyed during a capture: its work was joined, or ending the capture fails as unjoined. */
static void destroyed_in_a_capture(const struct client *c) {
  CUstream origin, other;
  CUevent fork, join;
  CUgraph graph;
  OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&fork, 0));
  OK(cuEventCreate(&join, 0));
  for (int joined = 1; joined >= 0; joined--) {
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(fork, origin));
    OK(cuStreamWaitEvent(other, fork, 0));
    spin(c, 1000, other);
    OK(cuEventRecord(join, other));
    if (joined)
      OK(cuStreamWaitEvent(origin, join, 0));
    OK(cuStreamDestroy_v2(other));
    spin(c, 1000, origin);
    EXPECT(cuStreamEndCapture(origin, &graph), joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    if (joined)
      OK(cuGraphDestroy(graph));
  }
  OK(cuStreamDestroy_v2(origin));
}

int main(void) {
  struct client c = client_start();
  back_to_back(&c);
  two_streams(&c);
  legacy_order(&c);
  per_thread(&c);
  host_functions(&c);
  values(&c);
  barriers(&c);
  copies_beside(&c);
  destroyed_stream(&c);
  destroyed_in_a_capture(&c);
  bounded_queue(&c);
  two_devices(&c);
  OK(cuCtxDestroy_v2(c.ctx));
  return 0;
}
