// A client of the CUDA runtime, linked statically or shared: a sum on the device, and the allocation that must not fit.
// runtime BYTES; prints as client.c does.
#include <cstdio>
#include <cstdlib>

__global__ void squares(unsigned long long *sum, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    atomicAdd(sum, (unsigned long long)i * i);
}

int main(int argc, char **argv) {
  unsigned long long *device = nullptr, sum = 0;
  size_t available = 0, total = 0;
  void *more = nullptr;
  if (argc != 2 || cudaMalloc(&device, sizeof *device) != cudaSuccess || cudaMemset(device, 0, sizeof *device) != cudaSuccess)
    return 1;
  squares<<<4096, 256>>>(device, 1000000);
  if (cudaMemcpy(&sum, device, sizeof sum, cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaMemGetInfo(&available, &total) != cudaSuccess)
    return 1;
  cudaError_t refused = cudaMalloc(&more, strtoull(argv[1], nullptr, 10));
  printf("{\"result\": %llu, \"refused\": \"%s\", \"total_bytes\": %zu}\n", sum, cudaGetErrorName(refused), total);
  return 0;
}
