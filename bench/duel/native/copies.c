/* The compute engine without a kernel. The simulated device moves the bytes of a copy on the host, far slower than the
 * device that it models, so these are many small ones: each takes a microsecond of the device. */
#include "duel.h"

enum { BYTES = 64 * 1024, COPIES = 1000 };

static CUdeviceptr memory(void) {
  CUdeviceptr at;
  MUST(cuMemAlloc_v2(&at, BYTES));
  return at;
}

static void fills(void) {
  CUdeviceptr at = memory();
  CUstream stream = new_stream();
  begin();
  for (unsigned long i = 1;; i++) {
    MUST(cuMemsetD8Async(at, (unsigned char)i, 1, stream));
    if (i % 2000 == 0)
      MUST(cuStreamSynchronize(stream));
  }
}

static void within(void) {
  CUdeviceptr from = memory(), to = memory();
  CUstream stream = new_stream();
  begin();
  for (unsigned long i = 1;; i++) {
    MUST(cuMemcpyDtoDAsync_v2(to, from, 1, stream));
    if (i % 2000 == 0)
      MUST(cuStreamSynchronize(stream));
  }
}

/* The first copy of the batch is over the bus, the others are within the device. */
static void batch(void) {
  static CUdeviceptr to[COPIES], from[COPIES];
  static size_t bytes[COPIES];
  CUdeviceptr device = memory();
  CUstream stream = new_stream();
  CUmemcpyAttributes attributes = {.srcAccessOrder = 1};
  size_t first = 0;
  void *host;
  MUST(cuMemHostAlloc(&host, BYTES, 0));
  for (int i = 0; i < COPIES; i++) {
    to[i] = device;
    from[i] = i ? device + BYTES / 2 : (CUdeviceptr)(uintptr_t)host;
    bytes[i] = 1;
  }
  begin();
  for (unsigned long i = 1;; i++) {
    MUST(cuMemcpyBatchAsync_v2(to, from, bytes, COPIES, &attributes, &first, 1, stream));
    if (i % 16 == 0)
      MUST(cuStreamSynchronize(stream));
  }
}

const struct evasion copy_evasions[] = {
    {.name = "fills", .about = "fills of one byte", .run = fills},
    {.name = "copies-within", .about = "copies of one byte within the device", .run = within},
    {.name = "copies-batch", .about = "batches of 1,000 copies, the first over the bus", .run = batch},
    {0},
};
