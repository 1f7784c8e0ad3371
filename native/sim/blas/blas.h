/* A cuBLAS and cuBLASLt that compute nothing and take the time that the work would take. NVIDIA's own libraries need
 * private tables of NVIDIA's driver.
 *
 * Each call launches one kernel through the public driver API, found with dlopen("libcuda.so.1"), so that an interposer
 * in front of the driver sees the cost of a program's matrix products. */
#ifndef SIM_BLAS_H
#define SIM_BLAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/gs_cuda_types.h"

/* cublasStatus_t */
enum {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH = 8,
  CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR = 14,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16
};

/* cudaDataType: the types that a matrix may have here */
enum {
  CUDA_R_32F = 0,
  CUDA_R_64F = 1,
  CUDA_R_16F = 2,
  CUDA_R_8I = 3,
  CUDA_C_32F = 4,
  CUDA_C_64F = 5,
  CUDA_C_16F = 6,
  CUDA_C_8I = 7,
  CUDA_R_8U = 8,
  CUDA_C_8U = 9,
  CUDA_R_32I = 10,
  CUDA_R_16BF = 14,
  CUDA_C_16BF = 15,
  BLAS_INDEX_64 = 24 /* CUDA_R_64I */
};

/* cublasComputeType_t; 0: determined by the type of the matrices and the handle's mathMode */
enum {
  CUBLAS_COMPUTE_16F = 64,
  CUBLAS_COMPUTE_16F_PEDANTIC = 65,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_64F_PEDANTIC = 71,
  CUBLAS_COMPUTE_32I = 72,
  CUBLAS_COMPUTE_32I_PEDANTIC = 73,
  CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};

enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 };
enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 };
enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_TF32_TENSOR_OP_MATH = 3 };

/* Every driver function used: name, requested version, parameters. */
/* clang-format off */
#define BLAS_DRIVER_FUNCTIONS(F)                                                                                      \
  F(cuInit, 2000, (unsigned))                                                                                         \
  F(cuCtxGetCurrent, 4000, (CUcontext *))                                                                             \
  F(cuCtxSetCurrent, 4000, (CUcontext))                                                                               \
  F(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                                          \
  F(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                                        \
  F(cuMemFree, 3020, (CUdeviceptr))                                                                                   \
  F(cuMemcpy2DUnaligned, 3020, (const CUDA_MEMCPY2D *))                                                               \
  F(cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *, CUstream))                                                         \
  F(cuStreamSynchronize, 2000, (CUstream))                                                                            \
  F(cuLibraryLoadData, 12000, (CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned))      \
  F(cuLibraryGetKernel, 12000, (CUkernel *, CUlibrary, const char *))                                                 \
  F(cuLaunchKernel, 4000,                                                                                             \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))
/* clang-format on */

struct blas_driver {
#define BLAS_FIELD(name, version, parameters) CUresult(*name) parameters;
  BLAS_DRIVER_FUNCTIONS(BLAS_FIELD)
#undef BLAS_FIELD
};
extern struct blas_driver blas_driver;

/* A handle of either library. */
struct blas {
  uint32_t magic; /* set while the handle is live */
  CUcontext ctx;  /* current when it was made */
  CUstream stream;
  int pointer_mode, math_mode, atomics_mode, sm_count_target;
  CUdeviceptr workspace; /* the handle's own, kept even if the program sets another */
  struct blas *next;     /* in the list of destroyed handles */
};

/* Loads the driver and ensures that the calling thread has a context; returns a cublasStatus_t. */
int blas_start(void);

/* Resolves a handle; NULL: not a live handle. */
struct blas *blas_of(void *handle);

/* Launches work on a handle's stream: `flops` operations on elements of `type`, and `elements` of them read or written.
 * A complex operation counts as four. Succeeds if there is no work. Returns a cublasStatus_t. */
int blas_work(void *handle, int type, int compute, double flops, double elements);

/* The same with a stream and a math mode instead of a handle. */
int blas_launch(CUstream stream, int math_mode, int type, int compute, double flops, double elements);

/* Writes a scalar result of `type`, always 0; waits for the stream if it is a host pointer. */
int blas_result(void *handle, void *result, int type);

/* The real type of a complex one. */
int blas_real(int type);

/* Bytes of an element; 0: unknown type, or not supported by this device. */
size_t blas_bytes(int type);

/* For cublas...GetStatusName and GetStatusString, and GetProperty. */
const char *blas_status_name(int status);
const char *blas_status_string(int status);
int blas_property(int type, int *value);
enum { BLAS_VERSION_13 = 130401, BLAS_VERSION_12 = 120903 };
#if SIM_CUDA_MAJOR == 12
enum { BLAS_VERSION = BLAS_VERSION_12, BLAS_CUDART_VERSION = 12090 };
#else
enum { BLAS_VERSION = BLAS_VERSION_13, BLAS_CUDART_VERSION = 13020 };
#endif

#define BLAS_API(type, name, parameters) \
  type name parameters __attribute__((visibility("default"))); \
  type name parameters

#endif
