// Local memory of 16 KiB a thread, indexed at run time so that it stays memory: the driver grows its local memory for the
// whole device, for every thread that fits on it at once. A module of its own, so that no other program can be made to pay.
#include <cstdint>

extern "C" __global__ void big_stack(uint64_t iterations, float *data, uint64_t floats) {
  volatile float local[4096];
  for (unsigned i = 0; i < 4096; i++)
    local[i] = data[(i + threadIdx.x) & (floats - 1)];
  float sum = 0;
  for (uint64_t i = 0; i < iterations; i++)
    sum += local[(i * 977 + threadIdx.x) % 4096];
  data[threadIdx.x & (floats - 1)] = sum;
}
