/* Fills: all forms are work for the device. */
#include "rows.h"

/* An element has the lowest bytes of VALUE. */
enum { VALUE = (int)0xc0ffa55a, COUNT = 1000, WIDTH = 48, HEIGHT = 7, ROW = 256 /* bytes from row to row */ };

/* A zeroed buffer, and its expected contents. */
struct fill {
  CUdeviceptr at;
  unsigned char *wanted;
};

static struct fill fill_ready(struct rows *r) {
  struct fill f = {memory(r, BYTES), zeroes()};
  put(r, f.at, f.wanted, BYTES);
  return f;
}

/* The contents once `rows` of `width` elements have been filled. */
static void filled(struct rows *r, const struct fill *f, size_t rows, size_t width) {
  const unsigned value = VALUE; /* little endian */
  size_t element = strstr(r->row->base, "D32") ? 4 : strstr(r->row->base, "D16") ? 2 : 1;
  for (size_t y = 0; y < rows; y++)
    for (size_t x = 0; x < width; x++)
      memcpy(f->wanted + y * ROW + x * element, &value, element);
  holds(r, f->at, f->wanted, BYTES);
}

void row_cuMemsetD32Async(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD32Async(f.at, VALUE, COUNT, given(r))))
    filled(r, &f, 1, COUNT);
  if (captured_too(r)) {
    done(r, start(r)->cuMemsetD32Async(f.at, VALUE, COUNT, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemsetD2D32Async(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D32Async(f.at, ROW, VALUE, WIDTH, HEIGHT, given(r))))
    filled(r, &f, HEIGHT, WIDTH);
  if (captured_too(r)) {
    done(r, start(r)->cuMemsetD2D32Async(f.at, ROW, VALUE, WIDTH, HEIGHT, given(r)));
    captured(r, stream(r), 1);
  }
}
