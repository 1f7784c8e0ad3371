/* Products of groups of matrices: each group has its own sizes. */
#include "sim/blas/blas.h"

/* One launch for all groups, as the real library does. `wide`: sizes are int64_t, otherwise int. */
static int grouped(void *handle, int type, int compute, const void *m, const void *n, const void *k, const void *size,
                   int64_t count, bool wide) {
  double flops = 0, elements = 0;
  if (count < 0 || (count > 0 && (!m || !n || !k || !size)))
    return CUBLAS_STATUS_INVALID_VALUE;
  for (int64_t i = 0; i < count; i++) {
    int64_t one[4];
    const void *from[4] = {m, n, k, size};
    for (int each = 0; each < 4; each++) {
      one[each] = wide ? ((const int64_t *)from[each])[i] : ((const int *)from[each])[i];
      if (one[each] < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    double rows = (double)one[0], columns = (double)one[1], inner = (double)one[2], products = (double)one[3];
    flops += 2 * rows * columns * inner * products;
    elements += (rows * inner + inner * columns + 2 * rows * columns) * products;
  }
  return blas_work(handle, type, compute, flops, elements);
}

#define GROUPED(name, N, suffix, wide, type) \
  BLAS_API(int, cublas##name##gemmGroupedBatched##suffix, \
           (void *handle, const int *transa, const int *transb, const N *m, const N *n, const N *k, const void *alpha, \
            const void *const *a, const N *lda, const void *const *b, const N *ldb, const void *beta, void *const *c, \
            const N *ldc, N count, const N *size)) { \
    (void)transa, (void)transb, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc; \
    return grouped(handle, type, 0, m, n, k, size, count, wide); \
  }
GROUPED(S, int, , false, CUDA_R_32F)
GROUPED(S, int64_t, _64, true, CUDA_R_32F)
GROUPED(D, int, , false, CUDA_R_64F)
GROUPED(D, int64_t, _64, true, CUDA_R_64F)

#define GROUPED_EX(N, suffix, wide) \
  BLAS_API(int, cublasGemmGroupedBatchedEx##suffix, \
           (void *handle, const int *transa, const int *transb, const N *m, const N *n, const N *k, const void *alpha, \
            const void *const *a, int a_type, const N *lda, const void *const *b, int b_type, const N *ldb, \
            const void *beta, void *const *c, int c_type, const N *ldc, N count, const N *size, int compute)) { \
    (void)transa, (void)transb, (void)alpha, (void)a, (void)lda, (void)b, (void)b_type, (void)ldb, (void)beta, \
        (void)c; \
    (void)c_type, (void)ldc; \
    return grouped(handle, a_type, compute, m, n, k, size, count, wide); \
  }
GROUPED_EX(int, , false)
GROUPED_EX(int64_t, _64, true)
