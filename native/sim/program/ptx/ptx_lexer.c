#include "sim/program/ptx/ptx_lexer.h"

#include <ctype.h>
#include <string.h>

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%'; }

static const char *after_blank(const char *p) {
  for (;;) {
    while (isspace((unsigned char)*p))
      p++;
    if (p[0] == '/' && p[1] == '/') {
      p += strcspn(p, "\n");
    } else if (p[0] == '/' && p[1] == '*') {
      const char *end = strstr(p + 2, "*/");
      p = end ? end + 2 : p + strlen(p);
    } else {
      return p;
    }
  }
}

/* Two colons are part of a word (ld.global.L2::128B); one ends a label. */
static const char *after_word(const char *p) {
  while (word_char(*p) || (p[0] == ':' && p[1] == ':' && word_char(p[2])))
    p += *p == ':' ? 2 : 1;
  return p;
}

bool sim_lexer_next(struct sim_lexer *lexer) {
  const char *p = after_blank(lexer->at);
  lexer->word = p;
  if (*p == '"') {
    p += 1 + strcspn(p + 1, "\"");
    p += *p == '"';
  } else if (word_char(*p)) {
    p = after_word(p);
  } else if (*p) {
    p++;
  }
  lexer->at = p;
  lexer->length = (size_t)(p - lexer->word);
  return lexer->length > 0;
}

char sim_lexer_ahead(const struct sim_lexer *lexer) { return *after_blank(lexer->at); }

void sim_lexer_skip_line(struct sim_lexer *lexer) { lexer->at += strcspn(lexer->at, "\n"); }

bool sim_lexer_is(const struct sim_lexer *lexer, const char *word) {
  return strlen(word) == lexer->length && memcmp(lexer->word, word, lexer->length) == 0;
}

bool sim_lexer_is_char(const struct sim_lexer *lexer, const char *any) {
  return lexer->length == 1 && strchr(any, *lexer->word) != NULL;
}

bool sim_lexer_is_word(const struct sim_lexer *lexer) { return lexer->length > 0 && word_char(*lexer->word); }
