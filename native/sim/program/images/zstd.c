#include "sim/program/images/zstd.h"

#include <stdlib.h>
#include <string.h>

#include "sim/program/images/bits.h"

enum { BLOCK_MAX = 131072, HUFFMAN_BITS_MAX = 11, WEIGHTS_MAX = 256 };

enum { RAW, RLE, COMPRESSED, TREELESS };
enum { PREDEFINED, SINGLE, DESCRIBED, REPEATED };
enum { LITERALS, OFFSETS, MATCHES, CODES };

struct huffman {
  unsigned bits; /* 0: none yet */
  struct {
    uint8_t symbol, bits;
  } entry[1 << HUFFMAN_BITS_MAX];
};

struct decoder {
  unsigned char *out;
  size_t bytes, made;
  struct huffman huffman;
  struct sim_fse fse[CODES];
  bool known[CODES]; /* there is a table to repeat */
  uint64_t repeats[3];
  size_t nliterals;
  unsigned char literals[BLOCK_MAX];
};

static bool skip(struct sim_piece *in, size_t bytes) {
  if (bytes > in->bytes)
    return false;
  in->at += bytes;
  in->bytes -= bytes;
  return true;
}

/* ---- literals ---------------------------------------------------------------------------------------------------- */

/* The code from the weights of all symbols but the last, whose weight completes the sum to a power of two. */
static bool huffman_build(struct huffman *huffman, uint8_t weight[WEIGHTS_MAX], unsigned count) {
  unsigned sum = 0, bits = 0, at = 0;
  for (unsigned i = 0; i < count; i++) {
    if (weight[i] > HUFFMAN_BITS_MAX)
      return false;
    sum += weight[i] ? 1u << (weight[i] - 1) : 0;
  }
  while (1u << bits <= sum)
    bits++;
  unsigned rest = (1u << bits) - sum;
  if (sum == 0 || bits > HUFFMAN_BITS_MAX || (rest & (rest - 1)) || count == WEIGHTS_MAX)
    return false;
  weight[count++] = (uint8_t)(__builtin_ctz(rest) + 1);
  huffman->bits = bits;
  for (unsigned w = 1; w <= bits; w++)
    for (unsigned s = 0; s < count; s++)
      for (unsigned i = 0; weight[s] == w && i < 1u << (w - 1); i++, at++) {
        huffman->entry[at].symbol = (uint8_t)s;
        huffman->entry[at].bits = (uint8_t)(bits + 1 - w);
      }
  return true;
}

/* Weights that are coded themselves, by two states in turn. */
static bool coded_weights(struct sim_piece in, uint8_t weight[WEIGHTS_MAX], unsigned *count) {
  struct sim_fse fse;
  struct sim_bits bits;
  if (!sim_fse_read(&fse, &in, HUFFMAN_BITS_MAX + 2, 6) || !sim_bits_begin(&bits, in))
    return false;
  unsigned state[2] = {(unsigned)sim_bits_read(&bits, fse.log), (unsigned)sim_bits_read(&bits, fse.log)};
  *count = 0;
  for (unsigned turn = 0; bits.left >= 0 && *count < WEIGHTS_MAX - 2; turn ^= 1) {
    weight[(*count)++] = fse.state[state[turn]].symbol;
    sim_fse_next(&fse, &state[turn], &bits);
    if (bits.left < 0)
      weight[(*count)++] = fse.state[state[turn ^ 1]].symbol;
  }
  return bits.left < 0;
}

static bool huffman_read(struct huffman *huffman, struct sim_piece *in) {
  uint8_t weight[WEIGHTS_MAX] = {0};
  unsigned header = in->bytes ? in->at[0] : 0, count = header - 127;
  size_t bytes = header < 128 ? header : (count + 1) / 2;
  struct sim_piece described = {in->at + 1, bytes};
  if (!skip(in, 1) || !skip(in, bytes))
    return false;
  if (header < 128)
    return coded_weights(described, weight, &count) && huffman_build(huffman, weight, count);
  for (unsigned i = 0; i < count; i++)
    weight[i] = i % 2 ? described.at[i / 2] & 15 : described.at[i / 2] >> 4;
  return huffman_build(huffman, weight, count);
}

static bool huffman_stream(const struct huffman *huffman, struct sim_piece in, unsigned char *out, size_t count) {
  struct sim_bits bits;
  if (!sim_bits_begin(&bits, in))
    return false;
  for (size_t i = 0; i < count && bits.left >= 0; i++) {
    uint64_t index = sim_bits_peek(&bits, huffman->bits);
    out[i] = huffman->entry[index].symbol;
    bits.left -= huffman->entry[index].bits;
  }
  return bits.left == 0;
}

/* Four streams, of which all but the last have the same number of symbols; before them, the lengths of three. */
static bool huffman_streams(struct decoder *to, struct sim_piece in) {
  size_t each = (to->nliterals + 3) / 4;
  const struct sim_piece lengths = in;
  if (!skip(&in, 6) || 3 * each > to->nliterals)
    return false;
  for (unsigned i = 0; i < 4; i++) {
    struct sim_piece one = {in.at, i < 3 ? sim_field(lengths, 2ul * i, 2) : in.bytes};
    size_t count = i < 3 ? each : to->nliterals - 3 * each;
    if (!skip(&in, one.bytes) || !huffman_stream(&to->huffman, one, to->literals + i * each, count))
      return false;
  }
  return true;
}

static bool coded_literals(struct decoder *to, struct sim_piece *in, unsigned kind, unsigned form) {
  unsigned header = form < 2 ? 3 : form + 2, width = form < 2 ? 10 : form == 2 ? 14 : 18;
  uint64_t both = sim_field(*in, 0, header) >> 4, mask = (1u << width) - 1;
  size_t bytes = both >> width & mask;
  to->nliterals = both & mask;
  struct sim_piece coded = {in->at + header, bytes};
  if (to->nliterals > BLOCK_MAX || !skip(in, header) || !skip(in, bytes))
    return false;
  if (kind == COMPRESSED && !huffman_read(&to->huffman, &coded))
    return false;
  if (to->huffman.bits == 0)
    return false;
  return form ? huffman_streams(to, coded) : huffman_stream(&to->huffman, coded, to->literals, to->nliterals);
}

static bool literals_read(struct decoder *to, struct sim_piece *in) {
  unsigned first = in->bytes ? in->at[0] : 0, kind = first & 3, form = first >> 2 & 3;
  if (in->bytes == 0)
    return false;
  if (kind >= COMPRESSED)
    return coded_literals(to, in, kind, form);
  unsigned header = form == 1 ? 2 : form == 3 ? 3 : 1;
  to->nliterals = sim_field(*in, 0, header) >> (header == 1 ? 3 : 4);
  const unsigned char *at = in->at + header;
  if (to->nliterals > BLOCK_MAX || !skip(in, header) || !skip(in, kind == RLE ? 1 : to->nliterals))
    return false;
  if (kind == RLE)
    memset(to->literals, *at, to->nliterals);
  else
    memcpy(to->literals, at, to->nliterals);
  return true;
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

/* What a code stands for: a first value, and bits that are added to it. */
struct value {
  uint32_t first;
  uint8_t bits;
};
static const struct value literal_values[36] = {
    {0, 0},   {1, 0},   {2, 0},     {3, 0},     {4, 0},     {5, 0},     {6, 0},      {7, 0},      {8, 0},
    {9, 0},   {10, 0},  {11, 0},    {12, 0},    {13, 0},    {14, 0},    {15, 0},     {16, 1},     {18, 1},
    {20, 1},  {22, 1},  {24, 2},    {28, 2},    {32, 3},    {40, 3},    {48, 4},     {64, 6},     {128, 7},
    {256, 8}, {512, 9}, {1024, 10}, {2048, 11}, {4096, 12}, {8192, 13}, {16384, 14}, {32768, 15}, {65536, 16}};
/* from code 32; those before are 3 + code */
static const struct value match_values[21] = {{35, 1},     {37, 1},     {39, 1},    {41, 1},    {43, 2},    {47, 2},
                                              {51, 3},     {59, 3},     {67, 4},    {83, 4},    {99, 5},    {131, 7},
                                              {259, 8},    {515, 9},    {1027, 10}, {2051, 11}, {4099, 12}, {8195, 13},
                                              {16387, 14}, {32771, 15}, {65539, 16}};

static struct value value_of(unsigned which, unsigned code) {
  if (which == LITERALS)
    return literal_values[code];
  if (which == OFFSETS)
    return (struct value){1u << code, (uint8_t)code};
  return code < 32 ? (struct value){code + 3, 0} : match_values[code - 32];
}

static const struct {
  unsigned symbols, log_max, log; /* log: of the predefined code */
  int16_t frequency[53];          /* of the predefined code */
} codes[CODES] = {
    {36, 9, 6, {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1}},
    {32, 8, 5, {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}},
    {53, 9, 6, {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}}};

static bool code_read(struct decoder *to, unsigned which, unsigned mode, struct sim_piece *in) {
  struct sim_fse *fse = &to->fse[which];
  const unsigned char *at = in->at;
  if (mode == REPEATED)
    return to->known[which];
  to->known[which] = true;
  if (mode == DESCRIBED)
    return sim_fse_read(fse, in, codes[which].symbols, codes[which].log_max);
  if (mode == PREDEFINED) {
    sim_fse_build(fse, codes[which].frequency, codes[which].symbols, codes[which].log);
    return true;
  }
  if (!skip(in, 1) || *at >= codes[which].symbols)
    return false;
  sim_fse_single(fse, *at);
  return true;
}

/* The distance that an offset's value stands for: one of the latest three, or a new one. 0: none. */
static uint64_t distance(uint64_t repeats[3], uint64_t value, bool literals) {
  unsigned which = (unsigned)value - literals; /* 0 to 2: of the latest three; 3: the latest less 1 */
  uint64_t found = value > 3 ? value - 3 : which == 3 ? repeats[0] - 1 : repeats[which];
  if (value > 3 || which >= 2)
    repeats[2] = repeats[1];
  if (value > 3 || which >= 1)
    repeats[1] = repeats[0];
  repeats[0] = found;
  return found;
}

static bool copy_literals(struct decoder *to, size_t *used, size_t count) {
  if (count > to->nliterals - *used || count > to->bytes - to->made)
    return false;
  memcpy(to->out + to->made, to->literals + *used, count);
  *used += count;
  to->made += count;
  return true;
}

static bool copy_match(struct decoder *to, uint64_t back, size_t count) {
  if (back == 0 || back > to->made || count > to->bytes - to->made)
    return false;
  for (; count; count--, to->made++)
    to->out[to->made] = to->out[to->made - back];
  return true;
}

static bool sequences_run(struct decoder *to, struct sim_piece in, unsigned count) {
  struct sim_bits bits;
  unsigned state[CODES];
  size_t used = 0;
  if (!sim_bits_begin(&bits, in))
    return false;
  for (unsigned i = 0; i < CODES; i++)
    state[i] = (unsigned)sim_bits_read(&bits, to->fse[i].log);
  for (unsigned n = 0; n < count && bits.left >= 0; n++) {
    static const unsigned order[CODES] = {OFFSETS, MATCHES, LITERALS}, after[CODES] = {LITERALS, MATCHES, OFFSETS};
    uint64_t got[CODES];
    for (unsigned i = 0; i < CODES; i++) {
      struct value value = value_of(order[i], to->fse[order[i]].state[state[order[i]]].symbol);
      got[order[i]] = value.first + sim_bits_read(&bits, value.bits);
    }
    for (unsigned i = 0; i < CODES && n + 1 < count; i++)
      sim_fse_next(&to->fse[after[i]], &state[after[i]], &bits);
    uint64_t back = distance(to->repeats, got[OFFSETS], got[LITERALS] > 0);
    if (!copy_literals(to, &used, got[LITERALS]) || !copy_match(to, back, got[MATCHES]))
      return false;
  }
  return bits.left == 0 && copy_literals(to, &used, to->nliterals - used);
}

static bool block_run(struct decoder *to, struct sim_piece in) {
  size_t none = 0;
  if (!literals_read(to, &in) || in.bytes == 0)
    return false;
  unsigned first = in.at[0], header = first < 128 ? 1 : first < 255 ? 2 : 3;
  unsigned count = header == 1   ? first
                   : header == 2 ? ((first - 128) << 8) + (unsigned)sim_field(in, 1, 1)
                                 : (unsigned)sim_field(in, 1, 2) + 0x7f00;
  if (!skip(&in, header))
    return false;
  if (count == 0)
    return copy_literals(to, &none, to->nliterals);
  unsigned modes = (unsigned)sim_field(in, 0, 1);
  if (!skip(&in, 1))
    return false;
  for (unsigned i = 0; i < CODES; i++)
    if (!code_read(to, i, modes >> (6 - 2 * i) & 3, &in))
      return false;
  return sequences_run(to, in, count);
}

/* ---- the frame --------------------------------------------------------------------------------------------------- */

static bool plain_block(struct decoder *to, const unsigned char *at, size_t count, bool repeated) {
  if (count > to->bytes - to->made)
    return false;
  if (repeated)
    memset(to->out + to->made, *at, count);
  else
    memcpy(to->out + to->made, at, count);
  to->made += count;
  return true;
}

static bool blocks_run(struct decoder *to, struct sim_piece in) {
  for (bool last = false; !last;) {
    unsigned header = (unsigned)sim_field(in, 0, 3), kind = header >> 1 & 3;
    size_t size = header >> 3, stored = kind == RLE ? 1 : size;
    last = header & 1;
    if (!skip(&in, 3) || stored > in.bytes || kind == TREELESS)
      return false;
    struct sim_piece body = {in.at, stored};
    if (!(kind == COMPRESSED ? block_run(to, body) : plain_block(to, body.at, size, kind == RLE)))
      return false;
    skip(&in, stored);
  }
  return to->made == to->bytes;
}

bool sim_zstd(struct sim_piece frame, unsigned char *out, size_t bytes) {
  enum { MAGIC = (int)0xfd2fb528 };
  static const unsigned dictionary[4] = {0, 1, 2, 4}, content[4] = {0, 2, 4, 8};
  unsigned about = (unsigned)sim_field(frame, 4, 1);
  bool single = about >> 5 & 1;
  size_t header = 5 + !single + dictionary[about & 3] + (about >> 6 ? content[about >> 6] : single);
  if ((int)sim_field(frame, 0, 4) != MAGIC || !skip(&frame, header))
    return false;
  struct decoder *to = calloc(1, sizeof *to);
  if (to == NULL)
    return false;
  *to = (struct decoder){.out = out, .bytes = bytes, .repeats = {1, 4, 8}};
  bool whole = blocks_run(to, frame);
  free(to);
  return whole;
}
