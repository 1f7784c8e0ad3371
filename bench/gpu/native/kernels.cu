// Kernels whose work is an amount, not a duration: one that spins on a clock would count the time in which the device had
// switched to another program. All take the same arguments; `iterations` scales the time linearly, `floats` is a power of two.
//
// The bounds keep them to 32 registers where a multiprocessor holds 2048 threads, as those of V100, A100, H100 and H200 do: then
// all of work.c's blocks run at once. Elsewhere they are ignored, with a warning, and the blocks come in two waves.
#include <cstdint>

extern "C" {

// Arithmetic in registers.
__global__ __launch_bounds__(256, 8) void burn(uint64_t iterations, float *data, uint64_t floats) {
  float a = threadIdx.x * 1e-3f, b = 1.0001f;
  for (uint64_t i = 0; i < iterations; i++) {
    a = fmaf(a, b, 1e-6f);
    b = fmaf(b, 0.9999f, 1e-6f);
  }
  if (a == 12345.678f) // never: keeps the loop
    data[(blockIdx.x * blockDim.x + threadIdx.x) & (floats - 1)] = a + b;
}

// Device memory, read and written in 16-byte pieces: what decoding a token is made of.
__global__ __launch_bounds__(256, 8) void stream(uint64_t iterations, float *data, uint64_t floats) {
  float4 *piece = reinterpret_cast<float4 *>(data);
  uint64_t last = floats / 4 - 1, step = (uint64_t)gridDim.x * blockDim.x, at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (uint64_t i = 0; i < iterations; i++) {
    float4 v = piece[at & last];
    v.x += 1.0f;
    v.w += v.y;
    piece[at & last] = v;
    at += step;
  }
}

// Tiles of a matrix product in shared memory; an iteration is one step of 16 along K.
__global__ __launch_bounds__(256, 8) void gemm(uint64_t iterations, float *data, uint64_t floats) {
  __shared__ float a[16][17], b[16][17];
  unsigned x = threadIdx.x % 16, y = threadIdx.x / 16;
  float sum = 0;
  uint64_t half = floats / 2, base = (uint64_t)blockIdx.x * 4099;
  for (uint64_t k = 0; k < iterations; k++) {
    uint64_t at = (base + k * 256 + threadIdx.x) & (half - 1);
    a[y][x] = data[at];
    b[y][x] = data[at + half];
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < 16; i++)
      sum = fmaf(a[y][i], b[i][x], sum);
    __syncthreads();
  }
  if (sum == 12345.678f)
    data[base & (half - 1)] = sum;
}
}
