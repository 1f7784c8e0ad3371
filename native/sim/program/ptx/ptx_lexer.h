/* The words of a PTX text. */
#ifndef SIM_PTX_LEXER_H
#define SIM_PTX_LEXER_H

#include <stdbool.h>
#include <stddef.h>

struct sim_lexer {
  const char *at;
  const char *word; /* the current token: a word (with a leading dot if it is a directive), a string or a character */
  size_t length;
};

bool sim_lexer_next(struct sim_lexer *lexer); /* false: the text has ended */
/* The first character after white space and comments; 0 at the end of the text. */
char sim_lexer_ahead(const struct sim_lexer *lexer);
void sim_lexer_skip_line(struct sim_lexer *lexer); /* moves behind the current line */

bool sim_lexer_is(const struct sim_lexer *lexer, const char *word);
bool sim_lexer_is_char(const struct sim_lexer *lexer, const char *any); /* one of the characters */
bool sim_lexer_is_word(const struct sim_lexer *lexer);                  /* no string, no other character */

#endif
