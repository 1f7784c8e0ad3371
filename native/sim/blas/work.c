/* Computes the cost of work and launches it. */
#include "sim/blas/blas.h"
#include "sim/model/card.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct blas_driver blas_driver;

enum {
  TILE = 128 * 128, /* elements per block of threads, as in the larger kernels of cuBLAS */
  MOST_BLOCKS = 0x7fffffff,
  THREADS = 128
};

/* The kernel's argument is its device time (native/sim/README.md). */
static const char spin_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                               ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";

static struct {
  pthread_once_t once;
  int status;
  CUkernel spin;
} all = {.once = PTHREAD_ONCE_INIT};

static bool load_functions(void *library) {
  static const struct {
    const char *name;
    int version;
    size_t field;
  } wanted[] = {
#define BLAS_ENTRY(name, version, parameters) {#name, version, offsetof(struct blas_driver, name)},
      BLAS_DRIVER_FUNCTIONS(BLAS_ENTRY)
#undef BLAS_ENTRY
  };
  typedef CUresult (*get_proc)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
  get_proc lookup = (get_proc)dlsym(library, "cuGetProcAddress_v2");
  for (size_t i = 0; lookup && i < sizeof wanted / sizeof wanted[0]; i++) {
    void **field = (void **)(void *)((char *)&blas_driver + wanted[i].field);
    if (lookup(wanted[i].name, field, wanted[i].version, 0, NULL) != CUDA_SUCCESS || !*field)
      return false;
  }
  return lookup != NULL;
}

static CUresult load_kernel(void) {
  CUlibrary library;
  CUresult result = blas_driver.cuInit(0);
  if (result == CUDA_SUCCESS)
    result = blas_driver.cuLibraryLoadData(&library, spin_ptx, NULL, NULL, 0, NULL, NULL, 0);
  return result == CUDA_SUCCESS ? blas_driver.cuLibraryGetKernel(&all.spin, library, "spin_ns") : result;
}

static void load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library || !load_functions(library) || load_kernel() != CUDA_SUCCESS)
    all.status = CUBLAS_STATUS_NOT_INITIALIZED;
}

int blas_start(void) {
  CUcontext current = NULL;
  pthread_once(&all.once, load);
  if (all.status != CUBLAS_STATUS_SUCCESS)
    return all.status;
  CUresult result = blas_driver.cuCtxGetCurrent(&current);
  if (result == CUDA_SUCCESS && !current) {
    result = blas_driver.cuDevicePrimaryCtxRetain(&current, 0);
    if (result == CUDA_SUCCESS)
      result = blas_driver.cuCtxSetCurrent(current);
  }
  return result == CUDA_SUCCESS               ? CUBLAS_STATUS_SUCCESS
         : result == CUDA_ERROR_OUT_OF_MEMORY ? CUBLAS_STATUS_ALLOC_FAILED
                                              : CUBLAS_STATUS_NOT_INITIALIZED;
}

static bool is_complex(int type) {
  switch (type) {
    case CUDA_C_64F:
    case CUDA_C_32F:
    case CUDA_C_16F:
    case CUDA_C_16BF:
    case CUDA_C_8I:
    case CUDA_C_8U: return true;
    default: return false;
  }
}

int blas_real(int type) {
  switch (type) {
    case CUDA_C_64F: return CUDA_R_64F;
    case CUDA_C_32F: return CUDA_R_32F;
    case CUDA_C_16F: return CUDA_R_16F;
    case CUDA_C_16BF: return CUDA_R_16BF;
    case CUDA_C_8I: return CUDA_R_8I;
    case CUDA_C_8U: return CUDA_R_8U;
    default: return type;
  }
}

size_t blas_bytes(int type) {
  size_t parts = is_complex(type) ? 2 : 1;
  switch (blas_real(type)) {
    case CUDA_R_64F:
    case BLAS_INDEX_64: return 8 * parts;
    case CUDA_R_32F:
    case CUDA_R_32I: return 4 * parts;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2 * parts;
    case CUDA_R_8I:
    case CUDA_R_8U: return parts;
    default: return 0;
  }
}

/* Operations per clock of a multiprocessor. */
static unsigned rate(int math_mode, int type, int compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF: return SIM_FP16_PER_CLOCK;
    case CUBLAS_COMPUTE_32F_FAST_TF32: return SIM_TF32_PER_CLOCK;
    default: break;
  }
  bool tf32 = math_mode == CUBLAS_TF32_TENSOR_OP_MATH && compute != CUBLAS_COMPUTE_32F_PEDANTIC;
  switch (blas_real(type)) {
    case CUDA_R_64F: return SIM_FP64_PER_CLOCK;
    case CUDA_R_32F: return tf32 ? SIM_TF32_PER_CLOCK : SIM_FP32_PER_CLOCK;
    case CUDA_R_8I:
    case CUDA_R_8U: return SIM_INT8_PER_CLOCK;
    default: return SIM_FP16_PER_CLOCK;
  }
}

/* Products of different shapes are launched with different grids, as cuBLAS does. */
static CUresult spin(CUstream stream, double ns, double elements) {
  uint64_t argument = ns > SIM_SHORTEST_NS ? (uint64_t)ns : SIM_SHORTEST_NS;
  double tiles = 1 + elements / TILE;
  unsigned blocks = tiles < MOST_BLOCKS ? (unsigned)tiles : MOST_BLOCKS;
  void *arguments[] = {&argument};
  return blas_driver.cuLaunchKernel((CUfunction)all.spin, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
}

int blas_launch(CUstream stream, int math_mode, int type, int compute, double flops, double elements) {
  size_t bytes = blas_bytes(type);
  if (!bytes)
    return CUBLAS_STATUS_NOT_SUPPORTED; /* FP8 and narrower: not on this device */
  int status = blas_start();            /* the handle may be one of the other library */
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (flops <= 0 && elements <= 0)
    return CUBLAS_STATUS_SUCCESS;
  double computing = flops * (is_complex(type) ? 4 : 1) / SIM_PER_NS(rate(math_mode, type, compute));
  double moving = elements * (double)bytes / SIM_BYTES_PER_NS;
  CUresult result = spin(stream, computing > moving ? computing : moving, elements);
  return result == CUDA_SUCCESS               ? CUBLAS_STATUS_SUCCESS
         : result == CUDA_ERROR_OUT_OF_MEMORY ? CUBLAS_STATUS_ALLOC_FAILED
                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}
