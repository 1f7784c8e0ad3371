#include "sim/program/images/parts.h"

#include <string.h>

#include "sim/model/card.h"

enum { DEVICE = 10 * SIM_CAPABILITY_MAJOR + SIM_CAPABILITY_MINOR };

uint64_t sim_field(struct sim_piece piece, size_t offset, size_t width) {
  uint64_t value = 0;
  if (offset <= piece.bytes && width <= piece.bytes - offset)
    memcpy(&value, piece.at + offset, width);
  return value;
}

bool sim_part_next(struct sim_piece fatbin, size_t *offset, struct sim_part *part) {
  if (*offset > fatbin.bytes || fatbin.bytes - *offset < PART_HEADER)
    return false;
  struct sim_piece rest = {fatbin.at + *offset, fatbin.bytes - *offset};
  uint64_t before = sim_field(rest, PART_HEADER_BYTES, 4), bytes = sim_field(rest, PART_BYTES, 8);
  if (before < PART_HEADER || before > rest.bytes || bytes > rest.bytes - before)
    return false;
  *part = (struct sim_part){{rest.at, before}, {rest.at + before, bytes}};
  *offset += before + bytes;
  return true;
}

unsigned sim_part_preference(const struct sim_part *part) {
  enum { CUBINS_FIRST = 1000 };
  uint64_t kind = sim_field(part->header, PART_KIND, 2), architecture = sim_field(part->header, PART_ARCHITECTURE, 4);
  if (architecture > DEVICE)
    return 0;
  if (kind == KIND_CUBIN && architecture / 10 == DEVICE / 10)
    return CUBINS_FIRST + (unsigned)architecture;
  return kind == KIND_PTX ? (unsigned)architecture : 0;
}
