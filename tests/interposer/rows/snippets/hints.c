/* Hints about managed memory, and decompression. */
#include "rows.h"

enum { ATTACH_GLOBAL = 1, READ_MOSTLY = 1 /* CU_MEM_ADVISE_SET_READ_MOSTLY */ };

static CUdeviceptr managed(struct rows *r) {
  CUdeviceptr at = 0;
  context(r);
  need(r, cuMemAllocManaged(&at, BYTES, ATTACH_GLOBAL), "managed memory");
  memcpy((void *)(uintptr_t)at, pattern(), BYTES);
  return at;
}

static CUmemLocation here(const struct rows *r) { return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, r->device}; }

/* The bytes are unchanged. */
static void kept(struct rows *r, CUdeviceptr at) { holds(r, at, pattern(), BYTES); }

/* The contents are undefined, but the memory can be written again. */
static void lost(struct rows *r, CUdeviceptr at) {
  settle(r);
  put(r, at, pattern(), BYTES);
  kept(r, at);
}

void row_cuMemAdvise(struct rows *r) {
  CUdeviceptr at = managed(r);
  if (done(r, start(r)->cuMemAdvise(at, BYTES, READ_MOSTLY, r->device)))
    kept(r, at);
}

void row_cuMemAdvise_v2(struct rows *r) {
  CUdeviceptr at = managed(r);
  if (done(r, start(r)->cuMemAdvise_v2(at, BYTES, READ_MOSTLY, here(r))))
    kept(r, at);
}

void row_cuMemPrefetchAsync(struct rows *r) {
  CUdeviceptr at = managed(r);
  if (done(r, start(r)->cuMemPrefetchAsync(at, BYTES, r->device, given(r))))
    kept(r, at);
}

void row_cuMemPrefetchAsync_v2(struct rows *r) {
  CUdeviceptr at = managed(r);
  if (done(r, start(r)->cuMemPrefetchAsync_v2(at, BYTES, here(r), 0, given(r))))
    kept(r, at);
}

/* A buffer in two parts, for one location. */
struct parts {
  CUdeviceptr at[2];
  size_t sizes[2], first[1];
  CUmemLocation where[1];
};

static struct parts parts_of(const struct rows *r, CUdeviceptr at) {
  return (struct parts){{at, at + HALF}, {HALF, HALF}, {0}, {here(r)}};
}

void row_cuMemPrefetchBatchAsync(struct rows *r) {
  CUdeviceptr at = managed(r);
  struct parts p = parts_of(r, at);
  if (done(r, start(r)->cuMemPrefetchBatchAsync(p.at, p.sizes, 2, p.where, p.first, 1, 0, given(r))))
    kept(r, at);
}

void row_cuMemDiscardAndPrefetchBatchAsync(struct rows *r) {
  CUdeviceptr at = managed(r);
  struct parts p = parts_of(r, at);
  if (done(r, start(r)->cuMemDiscardAndPrefetchBatchAsync(p.at, p.sizes, 2, p.where, p.first, 1, 0, given(r))))
    lost(r, at);
}

void row_cuMemDiscardBatchAsync(struct rows *r) {
  CUdeviceptr at = managed(r);
  struct parts p = parts_of(r, at);
  if (done(r, start(r)->cuMemDiscardBatchAsync(p.at, p.sizes, 2, 0, given(r))))
    lost(r, at);
}

/* Layout of cuda.h for one unit to decompress: sizes, pointer to the actual size, source, destination, algorithm. */
struct decompression {
  size_t from_bytes, to_bytes;
  uint32_t *actual;
  const void *from;
  void *to;
  int algorithm;
  unsigned char padding[20];
};
enum { SNAPPY = 2 };

/* "aaaa" in snappy: its length, then a literal of four bytes. */
static struct decompression four_letters(struct rows *r, CUdeviceptr *to) {
  static const unsigned char PACKED[] = {4, 3 << 2, 'a', 'a', 'a', 'a'};
  CUdeviceptr from = memory(r, sizeof PACKED), actual = memory(r, 4);
  *to = memory(r, 4);
  put(r, from, PACKED, sizeof PACKED);
  r->tentative = true; /* needs hardware that only some devices have */
  return (struct decompression){.from_bytes = sizeof PACKED,
                                .to_bytes = 4,
                                .actual = (uint32_t *)(uintptr_t)actual,
                                .from = (const void *)(uintptr_t)from,
                                .to = (void *)(uintptr_t)*to,
                                .algorithm = SNAPPY};
}

void row_cuMemBatchDecompressAsync(struct rows *r) {
  CUdeviceptr to = 0;
  struct decompression part = four_letters(r, &to);
  size_t wrong = 0;
  void *list = &part;
  if (done(r, work(r)->cuMemBatchDecompressAsync(list, 1, 0, &wrong, given(r))))
    holds(r, to, "aaaa", 4);
}
