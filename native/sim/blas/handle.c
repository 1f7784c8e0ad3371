/* cuBLAS handles, their settings, copies of vectors and matrices, and grouped products. */
#include "sim/blas/blas.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cublasCreate allocates this much in the handle's context: the size that NVIDIA documents for devices before Hopper
 * (cuBLAS documentation, cublasSetWorkspace). */
enum { WORKSPACE_BYTES = 4 << 20 };

enum { HANDLE_MAGIC = 0x626c6173 };

/* Destroyed handles, which new ones reuse. Their memory is never freed, so that a call with a destroyed handle can read
 * it and return an error. */
static struct {
  pthread_mutex_t lock;
  struct blas *first;
} destroyed = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct blas *blas_of(void *handle) {
  struct blas *blas = handle;
  return blas && __atomic_load_n(&blas->magic, __ATOMIC_RELAXED) == HANDLE_MAGIC ? blas : NULL;
}

static void put_back(struct blas *blas) {
  pthread_mutex_lock(&destroyed.lock);
  blas->next = destroyed.first;
  destroyed.first = blas;
  pthread_mutex_unlock(&destroyed.lock);
}

static struct blas *made(void) {
  pthread_mutex_lock(&destroyed.lock);
  struct blas *blas = destroyed.first;
  if (blas)
    destroyed.first = blas->next;
  pthread_mutex_unlock(&destroyed.lock);
  if (blas == NULL && (blas = malloc(sizeof *blas)) == NULL)
    return NULL;
  *blas = (struct blas){0};
  blas_driver.cuCtxGetCurrent(&blas->ctx);
  if (blas_driver.cuMemAlloc(&blas->workspace, WORKSPACE_BYTES) != CUDA_SUCCESS) {
    put_back(blas);
    return NULL;
  }
  __atomic_store_n(&blas->magic, HANDLE_MAGIC, __ATOMIC_RELEASE);
  return blas;
}

BLAS_API(int, cublasCreate_v2, (void **handle)) {
  if (!handle)
    return CUBLAS_STATUS_INVALID_VALUE;
  int status = blas_start();
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  struct blas *blas = made();
  if (blas == NULL)
    return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = blas;
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(int, cublasDestroy_v2, (void *handle)) {
  struct blas *blas = handle;
  uint32_t lives = HANDLE_MAGIC;
  if (!blas || !__atomic_compare_exchange_n(&blas->magic, &lives, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return CUBLAS_STATUS_NOT_INITIALIZED;
  CUcontext before = NULL;
  blas_driver.cuCtxGetCurrent(&before);
  if (blas_driver.cuCtxSetCurrent(blas->ctx) == CUDA_SUCCESS)
    blas_driver.cuMemFree(blas->workspace); /* waits for the work that uses it */
  blas_driver.cuCtxSetCurrent(before);
  put_back(blas);
  return CUBLAS_STATUS_SUCCESS;
}

#define SETTING(name, field) \
  BLAS_API(int, cublasSet##name, (void *handle, int value)) { \
    struct blas *blas = blas_of(handle); \
    if (!blas) \
      return CUBLAS_STATUS_NOT_INITIALIZED; \
    blas->field = value; \
    return CUBLAS_STATUS_SUCCESS; \
  } \
  BLAS_API(int, cublasGet##name, (void *handle, int *value)) { \
    struct blas *blas = blas_of(handle); \
    if (!blas || !value) \
      return blas ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED; \
    *value = blas->field; \
    return CUBLAS_STATUS_SUCCESS; \
  }
SETTING(PointerMode_v2, pointer_mode)
SETTING(AtomicsMode, atomics_mode)
SETTING(MathMode, math_mode)
SETTING(SmCountTarget, sm_count_target)

BLAS_API(int, cublasSetStream_v2, (void *handle, CUstream stream)) {
  struct blas *blas = blas_of(handle);
  if (!blas)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  blas->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(int, cublasGetStream_v2, (void *handle, CUstream *stream)) {
  struct blas *blas = blas_of(handle);
  if (!blas || !stream)
    return blas ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
  *stream = blas->stream;
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(int, cublasSetWorkspace_v2, (void *handle, void *workspace, size_t bytes)) {
  (void)workspace; /* unused: nothing is computed */
  (void)bytes;
  return blas_of(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

BLAS_API(int, cublasGetVersion_v2, (void *handle, int *version)) {
  (void)handle; /* documented to work without a handle */
  if (!version)
    return CUBLAS_STATUS_INVALID_VALUE;
  *version = BLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(int, cublasGetProperty, (int type, int *value)) { return blas_property(type, value); }
BLAS_API(size_t, cublasGetCudartVersion, (void)) { return BLAS_CUDART_VERSION; }
BLAS_API(const char *, cublasGetStatusName, (int status)) { return blas_status_name(status); }
BLAS_API(const char *, cublasGetStatusString, (int status)) { return blas_status_string(status); }

BLAS_API(int, cublasLoggerConfigure, (int on, int to_stdout, int to_stderr, const char *file)) {
  (void)on, (void)to_stdout, (void)to_stderr, (void)file; /* nothing is logged */
  return CUBLAS_STATUS_SUCCESS;
}
BLAS_API(int, cublasSetLoggerCallback, (void *callback)) {
  (void)callback;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- work of a handle -------------------------------------------------------------------------------------------- */

int blas_work(void *handle, int type, int compute, double flops, double elements) {
  struct blas *blas = blas_of(handle);
  return blas ? blas_launch(blas->stream, blas->math_mode, type, compute, flops, elements)
              : CUBLAS_STATUS_NOT_INITIALIZED;
}

int blas_result(void *handle, void *result, int type) {
  struct blas *blas = blas_of(handle);
  size_t bytes = blas_bytes(type);
  if (!result || !bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (blas->pointer_mode != CUBLAS_POINTER_MODE_HOST)
    return CUBLAS_STATUS_SUCCESS;
  if (blas_driver.cuStreamSynchronize(blas->stream) != CUDA_SUCCESS)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  memset(result, 0, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* `rows` elements of each of `columns`, between columns that lie `from_step` and `to_step` bytes apart. */
static int copy(CUstream stream, bool waits, const void *from, size_t from_step, void *to, size_t to_step, size_t width,
                size_t height) {
  const CUDA_MEMCPY2D wanted = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                .srcDevice = (CUdeviceptr)(uintptr_t)from,
                                .srcPitch = from_step,
                                .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                .dstDevice = (CUdeviceptr)(uintptr_t)to,
                                .dstPitch = to_step,
                                .WidthInBytes = width,
                                .Height = height};
  int status = blas_start();
  if (status != CUBLAS_STATUS_SUCCESS || width == 0 || height == 0)
    return status;
  CUresult result = waits ? blas_driver.cuMemcpy2DUnaligned(&wanted) : blas_driver.cuMemcpy2DAsync(&wanted, stream);
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

static int copy_vector(int64_t n, int64_t bytes, const void *x, int64_t incx, void *y, int64_t incy, CUstream stream,
                       bool waits) {
  if (n < 0 || bytes <= 0 || incx <= 0 || incy <= 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  return copy(stream, waits, x, (size_t)(incx * bytes), y, (size_t)(incy * bytes), (size_t)bytes, (size_t)n);
}

static int copy_matrix(int64_t rows, int64_t columns, int64_t bytes, const void *a, int64_t lda, void *b, int64_t ldb,
                       CUstream stream, bool waits) {
  if (rows < 0 || columns < 0 || bytes <= 0 || lda < rows || ldb < rows)
    return CUBLAS_STATUS_INVALID_VALUE;
  return copy(stream, waits, a, (size_t)(lda * bytes), b, (size_t)(ldb * bytes), (size_t)(rows * bytes),
              (size_t)columns);
}

#define COPIES(name, N, suffix) \
  BLAS_API(int, cublas##name##Vector##suffix, (N n, N bytes, const void *x, N incx, void *y, N incy)) { \
    return copy_vector(n, bytes, x, incx, y, incy, NULL, true); \
  } \
  BLAS_API(int, cublas##name##VectorAsync##suffix, \
           (N n, N bytes, const void *x, N incx, void *y, N incy, CUstream stream)) { \
    return copy_vector(n, bytes, x, incx, y, incy, stream, false); \
  } \
  BLAS_API(int, cublas##name##Matrix##suffix, (N rows, N columns, N bytes, const void *a, N lda, void *b, N ldb)) { \
    return copy_matrix(rows, columns, bytes, a, lda, b, ldb, NULL, true); \
  } \
  BLAS_API(int, cublas##name##MatrixAsync##suffix, \
           (N rows, N columns, N bytes, const void *a, N lda, void *b, N ldb, CUstream stream)) { \
    return copy_matrix(rows, columns, bytes, a, lda, b, ldb, stream, false); \
  }
COPIES(Set, int, )
COPIES(Set, int64_t, _64)
COPIES(Get, int, )
COPIES(Get, int64_t, _64)
