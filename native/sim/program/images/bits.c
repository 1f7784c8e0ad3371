#include "sim/program/images/bits.h"

#include <string.h>

static unsigned highest(uint64_t value) { return 63u - (unsigned)__builtin_clzll(value); }

bool sim_bits_begin(struct sim_bits *bits, struct sim_piece from) {
  unsigned last = from.bytes ? from.at[from.bytes - 1] : 0;
  if (last == 0)
    return false;
  *bits = (struct sim_bits){from.at, (int64_t)(from.bytes - 1) * 8 + highest(last)};
  return true;
}

uint64_t sim_bits_peek(const struct sim_bits *bits, unsigned count) {
  int64_t low = bits->left - (int64_t)count;
  uint64_t value = 0;
  unsigned missing = low < 0 ? (unsigned)-low : 0;
  if (missing >= count)
    return 0;
  low = low < 0 ? 0 : low;
  int64_t end = (bits->left + 7) / 8;
  for (int64_t byte = low / 8, shift = 0; byte < end; byte++, shift += 8)
    value |= (uint64_t)bits->at[byte] << shift;
  return (value >> (low % 8) & ((1ull << (count - missing)) - 1)) << missing;
}

uint64_t sim_bits_read(struct sim_bits *bits, unsigned count) {
  uint64_t value = sim_bits_peek(bits, count);
  bits->left -= count;
  return value;
}

void sim_fse_single(struct sim_fse *fse, uint8_t symbol) {
  fse->log = 0;
  fse->state[0] = (struct sim_fse_state){symbol, 0, 0};
}

void sim_fse_build(struct sim_fse *fse, const int16_t *frequency, unsigned symbols, unsigned log) {
  unsigned size = 1u << log, high = size, step = (size >> 1) + (size >> 3) + 3, at = 0;
  uint16_t next[FSE_SYMBOLS_MAX];
  fse->log = log;
  for (unsigned s = 0; s < symbols; s++) {
    next[s] = frequency[s] < 0 ? 1 : (uint16_t)frequency[s];
    if (frequency[s] < 0)
      fse->state[--high].symbol = (uint8_t)s;
  }
  for (unsigned s = 0; s < symbols; s++)
    for (int i = 0; i < frequency[s]; i++) {
      fse->state[at].symbol = (uint8_t)s;
      do
        at = (at + step) & (size - 1);
      while (at >= high);
    }
  for (unsigned i = 0; i < size; i++) {
    struct sim_fse_state *state = &fse->state[i];
    unsigned number = next[state->symbol]++;
    state->bits = (uint8_t)(log - highest(number));
    state->base = (uint16_t)((number << state->bits) - size);
  }
}

/* Bits from the lowest of the first byte upwards. */
struct upwards {
  struct sim_piece from;
  size_t at;
};

static unsigned take(struct upwards *in, unsigned count) {
  unsigned value = 0;
  for (unsigned i = 0; i < count; i++, in->at++)
    if (in->at / 8 < in->from.bytes)
      value |= (in->from.at[in->at / 8] >> in->at % 8 & 1u) << i;
  return value;
}

/* One frequency: the values that are possible are not a power of two, so the smaller ones have a bit less. */
static int frequency_of(struct upwards *in, unsigned remaining) {
  unsigned bits = highest(remaining + 1) + 1, value = take(in, bits), low = (1u << (bits - 1)) - 1;
  unsigned threshold = (1u << bits) - 1 - (remaining + 1);
  if ((value & low) < threshold) {
    in->at--;
    value &= low;
  } else if (value > low) {
    value -= threshold;
  }
  return (int)value - 1;
}

bool sim_fse_read(struct sim_fse *fse, struct sim_piece *from, unsigned symbols_max, unsigned log_max) {
  struct upwards in = {*from, 0};
  int16_t frequency[FSE_SYMBOLS_MAX] = {0};
  unsigned log = take(&in, 4) + 5, remaining = 1u << log, symbols = 0;
  if (log > log_max)
    return false;
  while (remaining && symbols < symbols_max) {
    int one = frequency_of(&in, remaining);
    unsigned used = one < 0 ? 1 : (unsigned)one;
    if (used > remaining)
      return false;
    remaining -= used;
    frequency[symbols++] = (int16_t)one;
    for (unsigned zeros = one ? 0 : 3; zeros == 3;)
      for (unsigned i = zeros = take(&in, 2); i && symbols < symbols_max; i--)
        symbols++;
  }
  size_t bytes = (in.at + 7) / 8;
  if (remaining || bytes > from->bytes)
    return false;
  from->at += bytes;
  from->bytes -= bytes;
  sim_fse_build(fse, frequency, symbols, log);
  return true;
}

void sim_fse_next(const struct sim_fse *fse, unsigned *state, struct sim_bits *bits) {
  const struct sim_fse_state *now = &fse->state[*state];
  *state = now->base + (unsigned)sim_bits_read(bits, now->bits);
}
