/* A client linked with -lcuda: bytes through the device and back, and the allocation that must not fit.  client SIZE
 *
 * SIZE is more than its share. Prints {"result": checksum, "refused": error name, "total_bytes"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { BYTES = 1 << 20 };

int main(int argc, char **argv) {
  static unsigned char in[BYTES], out[BYTES];
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUdeviceptr one, two, more;
  size_t size, available, total;
  unsigned long sum = 0;
  if (argc != 2 || !parse_size(argv[1], &size))
    return 2;
  for (unsigned i = 0; i < BYTES; i++)
    in[i] = (unsigned char)(i * 31 + i / 251);
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAlloc_v2(&one, BYTES));
  MUST(cuMemAlloc_v2(&two, BYTES));
  MUST(cuMemcpyHtoDAsync_v2(one, in, BYTES, stream));
  MUST(cuMemcpyDtoDAsync_v2(two, one, BYTES, stream));
  MUST(cuMemsetD8Async(two, 7, BYTES / 2, stream));
  MUST(cuMemcpyDtoHAsync_v2(out, two, BYTES, stream));
  MUST(cuStreamSynchronize(stream));
  for (unsigned i = 0; i < BYTES; i++)
    sum = sum * 1099511628211u + out[i];
  MUST(cuMemGetInfo_v2(&available, &total));
  printf("{\"result\": %lu, \"refused\": \"%s\", \"total_bytes\": %zu}\n", sum, error_name(cuMemAlloc_v2(&more, size)),
         total);
  return 0;
}
