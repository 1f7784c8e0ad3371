/* Decompression of a fatbin's parts, in the two methods of nvcc: LZ4 blocks, and Zstandard (zstd.c). */
#include <stdlib.h>
#include <string.h>

#include "sim/program/images/parts.h"
#include "sim/program/images/zstd.h"

enum { EXPANDED_MAX = 1 << 28, FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };

/* A length of LZ4: what a nibble holds, and more bytes if it is full. False beyond the end. */
static bool lz4_length(struct sim_piece in, size_t *at, size_t *length) {
  if (*length < 15)
    return true;
  for (unsigned more = 255; more == 255; *length += more) {
    if (*at >= in.bytes || *length > EXPANDED_MAX)
      return false;
    more = in.at[(*at)++];
  }
  return true;
}

/* An LZ4 block: sequences of literals and a match. False: it is damaged. */
static bool lz4(struct sim_piece in, unsigned char *out, size_t bytes) {
  size_t at = 0, made = 0;
  while (at < in.bytes) {
    unsigned token = in.at[at++];
    size_t literals = token >> 4, match = token & 15;
    if (!lz4_length(in, &at, &literals) || literals > in.bytes - at || literals > bytes - made)
      return false;
    memcpy(out + made, in.at + at, literals);
    at += literals;
    made += literals;
    if (at == in.bytes)
      break;
    size_t back = sim_field(in, at, 2);
    at += 2;
    if (at > in.bytes || back == 0 || back > made || !lz4_length(in, &at, &match) || (match += 4) > bytes - made)
      return false;
    for (; match; match--, made++)
      out[made] = out[made - back];
  }
  return made == bytes;
}

/* Writes what a compressed part holds to `out`, which has room for the number of bytes that its header states. */
static bool expand(const struct sim_part *part, unsigned char *out, size_t bytes) {
  uint64_t flags = sim_field(part->header, PART_FLAGS, 8);
  struct sim_piece in = {part->body.at, sim_field(part->header, PART_COMPRESSED, 4)};
  if (in.bytes > part->body.bytes)
    return false;
  return flags & FLAG_ZSTD ? sim_zstd(in, out, bytes) : flags & FLAG_LZ4 && lz4(in, out, bytes);
}

/* The size of a part that can be expanded; 0: it fits no device here, or is not compressed. */
static size_t plain_bytes(const struct sim_part *part) {
  uint64_t plain = sim_field(part->header, PART_PLAIN_BYTES, 8);
  bool compressed = sim_field(part->header, PART_COMPRESSED, 4) && plain > 0 && plain <= EXPANDED_MAX;
  return compressed && sim_part_preference(part) ? plain : 0;
}

static void put(unsigned char *at, uint64_t value, size_t width) { memcpy(at, &value, width); }

unsigned char *sim_fatbin_expand(struct sim_piece fatbin, size_t *bytes) {
  size_t header = sim_field(fatbin, FATBIN_HEADER_BYTES, 2), room = fatbin.bytes, made = header;
  struct sim_part part;
  for (size_t at = header; sim_part_next(fatbin, &at, &part);)
    room += plain_bytes(&part);
  unsigned char *out = malloc(room);
  if (out == NULL)
    return NULL;
  memcpy(out, fatbin.at, header);
  for (size_t at = header; sim_part_next(fatbin, &at, &part);) {
    unsigned char *body = out + made + part.header.bytes;
    size_t plain = plain_bytes(&part);
    memcpy(out + made, part.header.at, part.header.bytes);
    if (plain && expand(&part, body, plain)) {
      put(out + made + PART_BYTES, plain, 8);
      put(out + made + PART_COMPRESSED, 0, 4);
    } else {
      plain = part.body.bytes;
      memcpy(body, part.body.at, plain);
    }
    made += part.header.bytes + plain;
  }
  put(out + FATBIN_BYTES, made - header, 8);
  *bytes = made;
  return out;
}
