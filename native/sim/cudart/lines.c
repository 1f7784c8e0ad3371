/* Copies of a number of bytes from or to an array; at the end of a row they continue in the next one. */
#include "sim/cudart/cudart.h"

/* The current position of a copy in an array. */
struct place {
  CUarray array;
  size_t x, y; /* in bytes, in rows */
  size_t row;  /* bytes of a row */
};

static cudaError_t place(CUarray array, size_t x, size_t y, struct place *out) {
  struct cudaChannelFormatDesc channels;
  struct cudaExtent extent;
  cudaError_t error = cudaArrayGetInfo(&channels, &extent, NULL, array);
  if (error != cudaSuccess)
    return error;
  *out = (struct place){array, x, y, extent.width * rt_element_bytes(&channels)};
  return x < out->row ? cudaSuccess : rt_fail(cudaErrorInvalidValue);
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void advance(struct place *place, size_t width, size_t rows) {
  place->y += rows - (place->x + width < place->row);
  place->x = place->x + width < place->row ? place->x + width : 0;
}

/* The next box: whole rows if the copy is at the start of a row. */
static size_t next(const struct place *place, size_t count, size_t *width) {
  size_t rows = place->x == 0 && count >= place->row ? count / place->row : 1;
  *width = least(place->row - place->x, count);
  return rows;
}

static cudaError_t to_array(struct place to, const char *from, size_t count, int kind, bool wait, CUstream stream) {
  cudaError_t error = cudaSuccess;
  for (size_t width, rows; count > 0 && error == cudaSuccess; count -= width * rows, from += width * rows) {
    rows = next(&to, count, &width);
    error = wait ? cudaMemcpy2DToArray(to.array, to.x, to.y, from, width, width, rows, kind)
                 : cudaMemcpy2DToArrayAsync(to.array, to.x, to.y, from, width, width, rows, kind, stream);
    advance(&to, width, rows);
  }
  return error;
}

static cudaError_t from_array(char *to, struct place from, size_t count, int kind, bool wait, CUstream stream) {
  cudaError_t error = cudaSuccess;
  for (size_t width, rows; count > 0 && error == cudaSuccess; count -= width * rows, to += width * rows) {
    rows = next(&from, count, &width);
    error = wait ? cudaMemcpy2DFromArray(to, width, from.array, from.x, from.y, width, rows, kind)
                 : cudaMemcpy2DFromArrayAsync(to, width, from.array, from.x, from.y, width, rows, kind, stream);
    advance(&from, width, rows);
  }
  return error;
}

cudaError_t cudaMemcpyToArray(CUarray to, size_t x, size_t y, const void *from, size_t count, int kind) {
  struct place at;
  cudaError_t error = place(to, x, y, &at);
  return error == cudaSuccess ? to_array(at, from, count, kind, true, NULL) : error;
}

cudaError_t cudaMemcpyToArrayAsync(CUarray to, size_t x, size_t y, const void *from, size_t count, int kind,
                                   CUstream stream) {
  struct place at;
  cudaError_t error = place(to, x, y, &at);
  return error == cudaSuccess ? to_array(at, from, count, kind, false, stream) : error;
}

cudaError_t cudaMemcpyFromArray(void *to, CUarray from, size_t x, size_t y, size_t count, int kind) {
  struct place at;
  cudaError_t error = place(from, x, y, &at);
  return error == cudaSuccess ? from_array(to, at, count, kind, true, NULL) : error;
}

cudaError_t cudaMemcpyFromArrayAsync(void *to, CUarray from, size_t x, size_t y, size_t count, int kind,
                                     CUstream stream) {
  struct place at;
  cudaError_t error = place(from, x, y, &at);
  return error == cudaSuccess ? from_array(to, at, count, kind, false, stream) : error;
}

/* The rows of the two arrays may differ in length. */
cudaError_t cudaMemcpyArrayToArray(CUarray to, size_t to_x, size_t to_y, CUarray from, size_t from_x, size_t from_y,
                                   size_t count, int kind) {
  struct place source, target;
  cudaError_t error = place(from, from_x, from_y, &source);
  if (error == cudaSuccess)
    error = place(to, to_x, to_y, &target);
  for (size_t width; error == cudaSuccess && count > 0; count -= width) {
    width = least(count, least(source.row - source.x, target.row - target.x));
    error = cudaMemcpy2DArrayToArray(to, target.x, target.y, from, source.x, source.y, width, 1, kind);
    advance(&source, width, 1);
    advance(&target, width, 1);
  }
  return error;
}
