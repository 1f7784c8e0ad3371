/* Linked programs: the output of cuLinkComplete, a cubin that holds its inputs. Loading it finds the kernels and
 * variables in them. */
#ifndef SIM_LINKED_H
#define SIM_LINKED_H

#include <stdbool.h>

#include "sim/program/images/binary.h"

struct sim_link_input {
  size_t bytes; /* of data, without the NUL that follows a text */
  unsigned char *data;
  bool text; /* PTX; otherwise a binary of any form */
  struct sim_link_input *next;
};

/* A cubin of *bytes bytes, released with free(); NULL: out of memory. size: what the program takes when loaded. */
unsigned char *sim_linked_write(const struct sim_link_input *inputs, struct sim_program_size size, size_t *bytes);
/* Returns the next input in a complete binary; *at must be 0 at the first call. False: no more, or the binary was not
 * linked here. *data of a text ends with a NUL. */
bool sim_linked_next(const unsigned char *binary, size_t bytes, size_t *at, const unsigned char **data, size_t *length,
                     bool *text);

#endif
