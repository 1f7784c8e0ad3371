/* Fills: all forms are work for the device. */
#include "rows.h"

enum {
  BYTE = 0x5a,
  PAIR = 0xa55a,
  WORD = (int)0xc0ffee11,
  WIDTH = 48,
  HEIGHT = 7,
  ROW = 256 /* bytes from row to row */
};

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

static void wants(unsigned char *at, unsigned value, size_t element, size_t count) {
  for (size_t i = 0; i < count; i++)
    memcpy(at + i * element, &value, element); /* little endian */
}

static void filled(struct rows *r, const struct fill *f, unsigned value, size_t element) {
  wants(f->wanted, value, element, 1000);
  holds(r, f->at, f->wanted, BYTES);
}

static void filled_rows(struct rows *r, const struct fill *f, unsigned value, size_t element) {
  for (size_t y = 0; y < HEIGHT; y++)
    wants(f->wanted + y * ROW, value, element, WIDTH);
  holds(r, f->at, f->wanted, BYTES);
}

void row_cuMemsetD8(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD8(f.at, BYTE, 1000)))
    filled(r, &f, BYTE, 1);
}

void row_cuMemsetD8_v2(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD8_v2(f.at, BYTE, 1000)))
    filled(r, &f, BYTE, 1);
}

void row_cuMemsetD8_v2_ptds(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD8_v2_ptds(f.at, BYTE, 1000)))
    filled(r, &f, BYTE, 1);
}

void row_cuMemsetD8Async(struct rows *r) {
  struct fill f = fill_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemsetD8Async(f.at, BYTE, 1000, on)))
    filled(r, &f, BYTE, 1);
  capture(r, on);
  done(r, start(r)->cuMemsetD8Async(f.at, BYTE, 1000, on));
  captured(r, on, 1);
}

void row_cuMemsetD8Async_ptsz(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD8Async_ptsz(f.at, BYTE, 1000, NULL)))
    filled(r, &f, BYTE, 1);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemsetD8Async_ptsz(f.at, BYTE, 1000, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemsetD16(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD16(f.at, PAIR, 1000)))
    filled(r, &f, PAIR, 2);
}

void row_cuMemsetD16_v2(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD16_v2(f.at, PAIR, 1000)))
    filled(r, &f, PAIR, 2);
}

void row_cuMemsetD16_v2_ptds(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD16_v2_ptds(f.at, PAIR, 1000)))
    filled(r, &f, PAIR, 2);
}

void row_cuMemsetD16Async(struct rows *r) {
  struct fill f = fill_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemsetD16Async(f.at, PAIR, 1000, on)))
    filled(r, &f, PAIR, 2);
  capture(r, on);
  done(r, start(r)->cuMemsetD16Async(f.at, PAIR, 1000, on));
  captured(r, on, 1);
}

void row_cuMemsetD16Async_ptsz(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD16Async_ptsz(f.at, PAIR, 1000, NULL)))
    filled(r, &f, PAIR, 2);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemsetD16Async_ptsz(f.at, PAIR, 1000, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemsetD32(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD32(f.at, WORD, 1000)))
    filled(r, &f, WORD, 4);
}

void row_cuMemsetD32_v2(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD32_v2(f.at, WORD, 1000)))
    filled(r, &f, WORD, 4);
}

void row_cuMemsetD32_v2_ptds(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD32_v2_ptds(f.at, WORD, 1000)))
    filled(r, &f, WORD, 4);
}

void row_cuMemsetD32Async(struct rows *r) {
  struct fill f = fill_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemsetD32Async(f.at, WORD, 1000, on)))
    filled(r, &f, WORD, 4);
  capture(r, on);
  done(r, start(r)->cuMemsetD32Async(f.at, WORD, 1000, on));
  captured(r, on, 1);
}

void row_cuMemsetD32Async_ptsz(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD32Async_ptsz(f.at, WORD, 1000, NULL)))
    filled(r, &f, WORD, 4);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemsetD32Async_ptsz(f.at, WORD, 1000, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemsetD2D8(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D8(f.at, ROW, BYTE, WIDTH, HEIGHT)))
    filled_rows(r, &f, BYTE, 1);
}

void row_cuMemsetD2D8_v2(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D8_v2(f.at, ROW, BYTE, WIDTH, HEIGHT)))
    filled_rows(r, &f, BYTE, 1);
}

void row_cuMemsetD2D8_v2_ptds(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D8_v2_ptds(f.at, ROW, BYTE, WIDTH, HEIGHT)))
    filled_rows(r, &f, BYTE, 1);
}

void row_cuMemsetD2D8Async(struct rows *r) {
  struct fill f = fill_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemsetD2D8Async(f.at, ROW, BYTE, WIDTH, HEIGHT, on)))
    filled_rows(r, &f, BYTE, 1);
  capture(r, on);
  done(r, start(r)->cuMemsetD2D8Async(f.at, ROW, BYTE, WIDTH, HEIGHT, on));
  captured(r, on, 1);
}

void row_cuMemsetD2D8Async_ptsz(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D8Async_ptsz(f.at, ROW, BYTE, WIDTH, HEIGHT, NULL)))
    filled_rows(r, &f, BYTE, 1);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemsetD2D8Async_ptsz(f.at, ROW, BYTE, WIDTH, HEIGHT, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemsetD2D16(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D16(f.at, ROW, PAIR, WIDTH, HEIGHT)))
    filled_rows(r, &f, PAIR, 2);
}

void row_cuMemsetD2D16_v2(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D16_v2(f.at, ROW, PAIR, WIDTH, HEIGHT)))
    filled_rows(r, &f, PAIR, 2);
}

void row_cuMemsetD2D16_v2_ptds(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D16_v2_ptds(f.at, ROW, PAIR, WIDTH, HEIGHT)))
    filled_rows(r, &f, PAIR, 2);
}

void row_cuMemsetD2D16Async(struct rows *r) {
  struct fill f = fill_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemsetD2D16Async(f.at, ROW, PAIR, WIDTH, HEIGHT, on)))
    filled_rows(r, &f, PAIR, 2);
  capture(r, on);
  done(r, start(r)->cuMemsetD2D16Async(f.at, ROW, PAIR, WIDTH, HEIGHT, on));
  captured(r, on, 1);
}

void row_cuMemsetD2D16Async_ptsz(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D16Async_ptsz(f.at, ROW, PAIR, WIDTH, HEIGHT, NULL)))
    filled_rows(r, &f, PAIR, 2);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemsetD2D16Async_ptsz(f.at, ROW, PAIR, WIDTH, HEIGHT, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemsetD2D32(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D32(f.at, ROW, WORD, WIDTH, HEIGHT)))
    filled_rows(r, &f, WORD, 4);
}

void row_cuMemsetD2D32_v2(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D32_v2(f.at, ROW, WORD, WIDTH, HEIGHT)))
    filled_rows(r, &f, WORD, 4);
}

void row_cuMemsetD2D32_v2_ptds(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D32_v2_ptds(f.at, ROW, WORD, WIDTH, HEIGHT)))
    filled_rows(r, &f, WORD, 4);
}

void row_cuMemsetD2D32Async(struct rows *r) {
  struct fill f = fill_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemsetD2D32Async(f.at, ROW, WORD, WIDTH, HEIGHT, on)))
    filled_rows(r, &f, WORD, 4);
  capture(r, on);
  done(r, start(r)->cuMemsetD2D32Async(f.at, ROW, WORD, WIDTH, HEIGHT, on));
  captured(r, on, 1);
}

void row_cuMemsetD2D32Async_ptsz(struct rows *r) {
  struct fill f = fill_ready(r);
  if (done(r, work(r)->cuMemsetD2D32Async_ptsz(f.at, ROW, WORD, WIDTH, HEIGHT, NULL)))
    filled_rows(r, &f, WORD, 4);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemsetD2D32Async_ptsz(f.at, ROW, WORD, WIDTH, HEIGHT, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}
