/* Reads structured values from libFuzzer's input. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
  const uint8_t *at;
  size_t left;
};

/* Fills `out` from the input, with zeros after its end. */
static inline void take(struct bytes *in, void *out, size_t size) {
  size_t have = size < in->left ? size : in->left;
  memset(out, 0, size);
  memcpy(out, in->at, have);
  in->at += have;
  in->left -= have;
}

static inline uint8_t take8(struct bytes *in) {
  uint8_t value;
  take(in, &value, sizeof value);
  return value;
}

static inline uint32_t take32(struct bytes *in) {
  uint32_t value;
  take(in, &value, sizeof value);
  return value;
}

static inline uint64_t take64(struct bytes *in) {
  uint64_t value;
  take(in, &value, sizeof value);
  return value;
}

#define MUST(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      abort(); \
    } \
  } while (0)

#endif
