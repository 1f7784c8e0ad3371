/* cuBLASLt. Descriptors store all attributes; only sizes and types, and the stream of a call, have an effect here. */
#include "sim/blas/blas.h"

#include <stdlib.h>
#include <string.h>

/* Attributes of a kind of descriptor: the size in bytes of each, 0 for an unused number. They are stored one after
 * another in the descriptor, whose size is that of the opaque struct in cublasLt.h: programs may have it on their
 * stack. */
struct kind {
  size_t bytes; /* of the descriptor */
  unsigned count;
  uint8_t attribute[48];
};

enum { LAYOUT_TYPE, LAYOUT_ORDER, LAYOUT_ROWS, LAYOUT_COLS, LAYOUT_LD, LAYOUT_BATCH_COUNT };
enum { DESC_COMPUTE_TYPE, DESC_SCALE_TYPE, DESC_POINTER_MODE, DESC_TRANSA, DESC_TRANSB };
enum { ALGO_ID, ALGO_IDS = 1 };

static const struct kind layout_kind = {
#if SIM_CUDA_MAJOR == 12
    64, 8, {4, 4, 8, 8, 8, 4, 8, 8}};
#else
    112, 9, {4, 4, 8, 8, 8, 4, 8, 8, 4}};
#endif
static const struct kind matmul_kind = {256, 41, {4, 4, 4, 4, 4, 4, 4, 4, 8, 0, 8, 8, 8, 8, 8, 4, 0, 8, 8, 8, 8,
                                                  8, 4, 8, 8, 1, 4, 0, 0, 0, 0, 4, 4, 4, 4, 4, 8, 4, 8, 8, 8}};
static const struct kind preference_kind = {
#if SIM_CUDA_MAJOR == 12
    64, 13, {4, 8, 0, 4, 0, 4, 4, 4, 4, 4, 4, 4, 8}};
#else
    96, 16, {4, 8, 0, 4, 0, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8}};
#endif
static const struct kind transform_kind = {64, 4, {4, 4, 4, 4}};
static const struct kind algo_kind = {64, 9, {4, 4, 4, 4, 4, 4, 4, 2, 2}};

/* The address of an attribute; NULL: no such attribute. */
static unsigned char *place(const struct kind *kind, const void *descriptor, int attribute) {
  size_t offset = 0;
  if (attribute < 0 || (unsigned)attribute >= kind->count || kind->attribute[attribute] == 0)
    return NULL;
  for (int i = 0; i < attribute; i++)
    offset += kind->attribute[i];
  return (unsigned char *)(uintptr_t)descriptor + offset;
}

static int set(const struct kind *kind, void *descriptor, int attribute, const void *from, size_t bytes) {
  unsigned char *to = descriptor && from ? place(kind, descriptor, attribute) : NULL;
  if (to == NULL || bytes != kind->attribute[attribute])
    return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/* If there is no room, *written is the required size. */
static int get(const struct kind *kind, const void *descriptor, int attribute, void *to, size_t bytes,
               size_t *written) {
  const unsigned char *from = descriptor ? place(kind, descriptor, attribute) : NULL;
  if (from == NULL || (bytes == 0 && written == NULL))
    return CUBLAS_STATUS_INVALID_VALUE;
  size_t needed = kind->attribute[attribute];
  if (written)
    *written = needed;
  if (bytes == 0)
    return CUBLAS_STATUS_SUCCESS;
  if (to == NULL || bytes != needed)
    return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, from, needed);
  return CUBLAS_STATUS_SUCCESS;
}

static int64_t value(const struct kind *kind, const void *descriptor, int attribute) {
  int64_t wide = 0;
  int32_t narrow = 0;
  if (kind->attribute[attribute] == sizeof wide) {
    memcpy(&wide, place(kind, descriptor, attribute), sizeof wide);
    return wide;
  }
  memcpy(&narrow, place(kind, descriptor, attribute), sizeof narrow);
  return narrow;
}

static int initialise(const struct kind *kind, void *descriptor, size_t bytes) {
  if (descriptor == NULL || bytes < kind->bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  memset(descriptor, 0, kind->bytes);
  return CUBLAS_STATUS_SUCCESS;
}

static int create(const struct kind *kind, void **descriptor) {
  if (descriptor == NULL)
    return CUBLAS_STATUS_INVALID_VALUE;
  void *made = calloc(1, kind->bytes);
  if (made == NULL)
    return CUBLAS_STATUS_ALLOC_FAILED;
  *descriptor = made;
  return CUBLAS_STATUS_SUCCESS;
}

/* Set, get, and destroy of a kind of descriptor. */
#define DESCRIPTOR(name, kind) \
  BLAS_API(int, cublasLt##name##SetAttribute, (void *descriptor, int attribute, const void *from, size_t bytes)) { \
    return set(&kind, descriptor, attribute, from, bytes); \
  } \
  BLAS_API(int, cublasLt##name##GetAttribute, \
           (const void *descriptor, int attribute, void *to, size_t bytes, size_t *written)) { \
    return get(&kind, descriptor, attribute, to, bytes, written); \
  } \
  BLAS_API(int, cublasLt##name##Destroy, (void *descriptor)) { \
    free(descriptor); \
    return CUBLAS_STATUS_SUCCESS; \
  }
DESCRIPTOR(MatrixLayout, layout_kind)
DESCRIPTOR(MatmulDesc, matmul_kind)
DESCRIPTOR(MatmulPreference, preference_kind)
DESCRIPTOR(MatrixTransformDesc, transform_kind)

/* ---- initial values of descriptors ------------------------------------------------------------------------------- */

static void begin_layout(void *layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  enum { ORDER_COL };
  const int32_t order = ORDER_COL, batches = 1;
  set(&layout_kind, layout, LAYOUT_TYPE, &type, sizeof type);
  set(&layout_kind, layout, LAYOUT_ORDER, &order, sizeof order);
  set(&layout_kind, layout, LAYOUT_ROWS, &rows, sizeof rows);
  set(&layout_kind, layout, LAYOUT_COLS, &columns, sizeof columns);
  set(&layout_kind, layout, LAYOUT_LD, &ld, sizeof ld);
  set(&layout_kind, layout, LAYOUT_BATCH_COUNT, &batches, sizeof batches);
}

BLAS_API(int, cublasLtMatrixLayoutInit_internal,
         (void *layout, size_t bytes, int type, uint64_t rows, uint64_t columns, int64_t ld)) {
  int status = initialise(&layout_kind, layout, bytes);
  if (status == CUBLAS_STATUS_SUCCESS)
    begin_layout(layout, type, rows, columns, ld);
  return status;
}
BLAS_API(int, cublasLtMatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld)) {
  int status = create(&layout_kind, layout);
  if (status == CUBLAS_STATUS_SUCCESS)
    begin_layout(*layout, type, rows, columns, ld);
  return status;
}

static void begin_matmul(void *matmul, int compute, int scale) {
  set(&matmul_kind, matmul, DESC_COMPUTE_TYPE, &compute, sizeof compute);
  set(&matmul_kind, matmul, DESC_SCALE_TYPE, &scale, sizeof scale);
}

BLAS_API(int, cublasLtMatmulDescInit_internal, (void *matmul, size_t bytes, int compute, int scale)) {
  int status = initialise(&matmul_kind, matmul, bytes);
  if (status == CUBLAS_STATUS_SUCCESS)
    begin_matmul(matmul, compute, scale);
  return status;
}
BLAS_API(int, cublasLtMatmulDescCreate, (void **matmul, int compute, int scale)) {
  int status = create(&matmul_kind, matmul);
  if (status == CUBLAS_STATUS_SUCCESS)
    begin_matmul(*matmul, compute, scale);
  return status;
}

BLAS_API(int, cublasLtMatmulPreferenceInit_internal, (void *preference, size_t bytes)) {
  return initialise(&preference_kind, preference, bytes);
}
BLAS_API(int, cublasLtMatmulPreferenceCreate, (void **preference)) { return create(&preference_kind, preference); }

BLAS_API(int, cublasLtMatrixTransformDescInit_internal, (void *transform, size_t bytes, int scale)) {
  int status = initialise(&transform_kind, transform, bytes);
  return status == CUBLAS_STATUS_SUCCESS ? set(&transform_kind, transform, 0, &scale, sizeof scale) : status;
}
BLAS_API(int, cublasLtMatrixTransformDescCreate, (void **transform, int scale)) {
  int status = create(&transform_kind, transform);
  return status == CUBLAS_STATUS_SUCCESS ? set(&transform_kind, *transform, 0, &scale, sizeof scale) : status;
}

/* ---- algorithms: there is one, which needs no workspace ---------------------------------------------------------- */

struct heuristic_result {
  unsigned char algo[64];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

static bool known_type(const void *layout) {
  return layout && blas_bytes((int)value(&layout_kind, layout, LAYOUT_TYPE)) > 0;
}

BLAS_API(int, cublasLtMatmulAlgoGetHeuristic,
         (void *handle, const void *matmul, const void *a, const void *b, const void *c, const void *d,
          const void *preference, int wanted, struct heuristic_result *results, int *found)) {
  (void)preference;
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!matmul || !a || !b || !c || !d || wanted < 1 || !results || !found)
    return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  if (!known_type(a) || !known_type(b))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = (struct heuristic_result){.state = CUBLAS_STATUS_SUCCESS, .waves = 1};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(int, cublasLtMatmulAlgoGetIds,
         (void *handle, int compute, int scale, int a, int b, int c, int d, int wanted, int ids[], int *found)) {
  (void)compute, (void)scale, (void)c, (void)d;
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted < 1 || !ids || !found)
    return CUBLAS_STATUS_INVALID_VALUE;
  *found = blas_bytes(a) && blas_bytes(b) ? ALGO_IDS : 0;
  ids[0] = 0;
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(int, cublasLtMatmulAlgoInit,
         (void *handle, int compute, int scale, int a, int b, int c, int d, int id, void *algo)) {
  (void)compute, (void)scale, (void)c, (void)d;
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algo || id != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  return blas_bytes(a) && blas_bytes(b) ? initialise(&algo_kind, algo, algo_kind.bytes) : CUBLAS_STATUS_NOT_SUPPORTED;
}

BLAS_API(int, cublasLtMatmulAlgoCheck,
         (void *handle, const void *matmul, const void *a, const void *b, const void *c, const void *d,
          const void *algo, struct heuristic_result *result)) {
  int found;
  if (!algo)
    return CUBLAS_STATUS_INVALID_VALUE;
  return cublasLtMatmulAlgoGetHeuristic(handle, matmul, a, b, c, d, NULL, 1, result, &found);
}

BLAS_API(int, cublasLtMatmulAlgoConfigSetAttribute, (void *algo, int attribute, const void *from, size_t bytes)) {
  return set(&algo_kind, algo, attribute, from, bytes);
}
BLAS_API(int, cublasLtMatmulAlgoConfigGetAttribute,
         (const void *algo, int attribute, void *to, size_t bytes, size_t *written)) {
  return get(&algo_kind, algo, attribute, to, bytes, written);
}

/* Every capability is 0: there are no optional ones here. */
BLAS_API(int, cublasLtMatmulAlgoCapGetAttribute,
         (const void *algo, int attribute, void *to, size_t bytes, size_t *written)) {
  (void)attribute;
  if (!algo || (bytes && !to))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (to)
    memset(to, 0, bytes);
  if (written)
    *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

BLAS_API(int, cublasLtMatmul,
         (void *handle, const void *matmul, const void *alpha, const void *a, const void *a_layout, const void *b,
          const void *b_layout, const void *beta, const void *c, const void *c_layout, void *d, const void *d_layout,
          const void *algo, void *workspace, size_t workspace_bytes, CUstream stream)) {
  (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)d, (void)algo, (void)workspace, (void)workspace_bytes;
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!matmul || !a_layout || !b_layout || !c_layout || !d_layout)
    return CUBLAS_STATUS_INVALID_VALUE;
  bool transposed = value(&matmul_kind, matmul, DESC_TRANSA) != 0;
  double inner = (double)value(&layout_kind, a_layout, transposed ? LAYOUT_ROWS : LAYOUT_COLS);
  double rows = (double)value(&layout_kind, d_layout, LAYOUT_ROWS);
  double columns = (double)value(&layout_kind, d_layout, LAYOUT_COLS);
  double batches = (double)value(&layout_kind, d_layout, LAYOUT_BATCH_COUNT);
  return blas_launch(stream, CUBLAS_DEFAULT_MATH, (int)value(&layout_kind, a_layout, LAYOUT_TYPE),
                     (int)value(&matmul_kind, matmul, DESC_COMPUTE_TYPE), 2 * rows * columns * inner * batches,
                     (rows * inner + inner * columns + 2 * rows * columns) * batches);
}

BLAS_API(int, cublasLtMatrixTransform,
         (void *handle, const void *transform, const void *alpha, const void *a, const void *a_layout, const void *beta,
          const void *b, const void *b_layout, void *c, const void *c_layout, CUstream stream)) {
  (void)alpha, (void)a, (void)beta, (void)b, (void)b_layout, (void)c;
  if (!handle)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!transform || !a_layout || !c_layout)
    return CUBLAS_STATUS_INVALID_VALUE;
  double elements = (double)value(&layout_kind, c_layout, LAYOUT_ROWS) *
                    (double)value(&layout_kind, c_layout, LAYOUT_COLS) *
                    (double)value(&layout_kind, c_layout, LAYOUT_BATCH_COUNT);
  return blas_launch(stream, CUBLAS_DEFAULT_MATH, (int)value(&layout_kind, c_layout, LAYOUT_TYPE), 0, 0, 2 * elements);
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

BLAS_API(int, cublasLtCreate, (void **handle)) {
  if (!handle)
    return CUBLAS_STATUS_INVALID_VALUE;
  int status = blas_start();
  /* allocated as a struct blas, because cuBLAS reads the magic of a handle that it is given by mistake */
  void *made = status == CUBLAS_STATUS_SUCCESS ? calloc(1, sizeof(struct blas)) : NULL;
  if (status == CUBLAS_STATUS_SUCCESS && !made)
    return CUBLAS_STATUS_ALLOC_FAILED;
  if (made)
    *handle = made;
  return status;
}
BLAS_API(int, cublasLtDestroy, (void *handle)) {
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

BLAS_API(size_t, cublasLtGetVersion, (void)) { return BLAS_VERSION; }
BLAS_API(size_t, cublasLtGetCudartVersion, (void)) { return BLAS_CUDART_VERSION; }
BLAS_API(int, cublasLtGetProperty, (int type, int *out)) { return blas_property(type, out); }
BLAS_API(const char *, cublasLtGetStatusName, (int status)) { return blas_status_name(status); }
BLAS_API(const char *, cublasLtGetStatusString, (int status)) { return blas_status_string(status); }

BLAS_API(int, cublasLtHeuristicsCacheGetCapacity, (size_t *capacity)) {
  if (!capacity)
    return CUBLAS_STATUS_INVALID_VALUE;
  *capacity = 0;
  return CUBLAS_STATUS_SUCCESS;
}
BLAS_API(int, cublasLtHeuristicsCacheSetCapacity, (size_t capacity)) {
  (void)capacity;
  return CUBLAS_STATUS_SUCCESS;
}

/* Nothing is logged. */
#define SILENT(name, type) \
  BLAS_API(int, cublasLtLogger##name, (type ignored)) { \
    (void)ignored; \
    return CUBLAS_STATUS_SUCCESS; \
  }
SILENT(SetCallback, void *)
SILENT(SetFile, void *)
SILENT(OpenFile, const char *)
SILENT(SetLevel, int)
SILENT(SetMask, int)
BLAS_API(int, cublasLtLoggerForceDisable, (void)) { return CUBLAS_STATUS_SUCCESS; }
