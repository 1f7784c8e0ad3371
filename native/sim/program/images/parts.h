/* The parts of a fatbin: cubins and PTX texts for several architectures, each of them compressed or not. */
#ifndef SIM_PARTS_H
#define SIM_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The format of nvcc 12 and 13: a header followed by parts, each with its own header. Fields by offset. */
enum {
  FATBIN_MAGIC = (int)0xba55ed50,
  FATBIN_HEADER_BYTES = 6, /* u16 */
  FATBIN_BYTES = 8,        /* u64, after the header */
  FATBIN_HEADER = 16,
  PART_KIND = 0,          /* u16 */
  PART_HEADER_BYTES = 4,  /* u32 */
  PART_BYTES = 8,         /* u64, after the header */
  PART_COMPRESSED = 16,   /* u32: size in bytes; 0: not compressed */
  PART_HEADER = 20,       /* minimum size */
  PART_ARCHITECTURE = 28, /* u32: 90 for sm_90 and compute_90 */
  PART_FLAGS = 40,        /* u64 */
  PART_PLAIN_BYTES = 56,  /* u64: size before compression */
  KIND_PTX = 1,
  KIND_CUBIN = 2
};

/* A range of an image's bytes. */
struct sim_piece {
  const unsigned char *at;
  size_t bytes;
};

/* A little-endian number; 0 beyond the end of the piece. */
uint64_t sim_field(struct sim_piece piece, size_t offset, size_t width);

struct sim_part {
  struct sim_piece header, body;
};
/* Reads the part at an offset of a fatbin and moves *offset past it. False if the part is incomplete. */
bool sim_part_next(struct sim_piece fatbin, size_t *offset, struct sim_part *part);
/* The order in which parts are preferred: cubins before PTX, newer architectures before older, 0 for a part that does
 * not fit. A cubin runs on its own minor version and on later ones of the same major version, PTX on all later
 * versions. */
unsigned sim_part_preference(const struct sim_part *part);

/* The same fatbin of *bytes bytes with the compressed parts that fit the device expanded, if they are whole and their
 * method is known; the caller frees it. NULL: out of memory. */
unsigned char *sim_fatbin_expand(struct sim_piece fatbin, size_t *bytes);

#endif
