/* Streams of bits, as Zstandard has them, and its finite state entropy code (FSE). */
#ifndef SIM_BITS_H
#define SIM_BITS_H

#include "sim/program/images/parts.h"

/* Read from the highest bit of the last byte down to the first byte. `left` is the number of bits that remain; beyond
 * the beginning the bits are 0, and left is negative. */
struct sim_bits {
  const unsigned char *at;
  int64_t left;
};
bool sim_bits_begin(struct sim_bits *bits, struct sim_piece from);   /* false: no padding is marked */
uint64_t sim_bits_peek(const struct sim_bits *bits, unsigned count); /* count <= 32 */
uint64_t sim_bits_read(struct sim_bits *bits, unsigned count);

enum { FSE_LOG_MAX = 9, FSE_SYMBOLS_MAX = 64 };
struct sim_fse {
  unsigned log;
  struct sim_fse_state {
    uint8_t symbol, bits;
    uint16_t base;
  } state[1 << FSE_LOG_MAX];
};
/* From the frequency of each symbol, of which -1 is less than 1. */
void sim_fse_build(struct sim_fse *fse, const int16_t *frequency, unsigned symbols, unsigned log);
void sim_fse_single(struct sim_fse *fse, uint8_t symbol); /* no bits: always this symbol */
/* Reads the description of a table and moves *from past it. False: it is damaged, or has more symbols or states. */
bool sim_fse_read(struct sim_fse *fse, struct sim_piece *from, unsigned symbols_max, unsigned log_max);
void sim_fse_next(const struct sim_fse *fse, unsigned *state, struct sim_bits *bits);

#endif
