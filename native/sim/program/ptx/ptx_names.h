/* The names in a PTX text: declared ones, those that an instruction refers to, and those of the language. */
#ifndef SIM_PTX_NAMES_H
#define SIM_PTX_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "sim/program/ptx/ptx_lexer.h"

struct sim_ptx_name {
  const char *at; /* in the text; NULL: an empty place */
  size_t length;
  size_t count; /* %r<9> declares %r0 to %r8; 0: the name itself */
};

/* Names and references, zero at first; released with sim_ptx_names_free. Where memory is short, they are incomplete and
 * no_memory is set. */
struct sim_ptx_names {
  struct sim_ptx_name *table; /* open addressing */
  size_t room, used;
  struct sim_ptx_name *references;
  size_t nreferences, reference_room;
  bool no_memory;
};

void sim_ptx_names_declare(struct sim_ptx_names *names, const char *at, size_t length, size_t count);
void sim_ptx_names_refer(struct sim_ptx_names *names, const struct sim_lexer *word);
/* The first reference to a name that is not declared, wherever that might be in the text; NULL: there is none. */
const struct sim_ptx_name *sim_ptx_names_unknown(const struct sim_ptx_names *names);
void sim_ptx_names_free(struct sim_ptx_names *names);

/* The current word begins with the name of an instruction. */
bool sim_ptx_instruction(const struct sim_lexer *lexer);
/* One of its modifiers looks like a type, but is none. *at, *length: where it is in the word. */
bool sim_ptx_odd_modifier(const struct sim_lexer *lexer, size_t *at, size_t *length);
/* The word, with its dot, is the type of a variable, or another word that may stand in a declaration. */
bool sim_ptx_type(const struct sim_lexer *lexer);
bool sim_ptx_property(const struct sim_lexer *lexer);

#endif
