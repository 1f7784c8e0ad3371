#include "sim/program/ptx/ptx_syntax.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_ptx_fail(struct sim_ptx_checker *c, CUresult result, const char *at, const char *format, ...) {
  char what[SIM_PTX_LOG / 2];
  unsigned line = 1;
  va_list arguments;
  if (c->result)
    return;
  for (const char *p = c->text; p < at; p++)
    line += *p == '\n';
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  snprintf(c->log, SIM_PTX_LOG,
           "ptxas application ptx input, line %u; %s\nptxas fatal   : Ptx assembly aborted due to errors", line, what);
  c->result = result;
}

void sim_ptx_fail_here(struct sim_ptx_checker *c) {
  int shown = c->lexer.length > SIM_PTX_NEAR ? SIM_PTX_NEAR : (int)c->lexer.length;
  sim_ptx_fail(c, CUDA_ERROR_INVALID_PTX, c->lexer.word, "fatal   : Parsing error near '%.*s': syntax error", shown,
               c->lexer.word);
}

bool sim_ptx_next(struct sim_ptx_checker *c) {
  if (!c->result && sim_lexer_next(&c->lexer))
    return true;
  sim_ptx_fail_here(c);
  return false;
}

static bool is(const struct sim_ptx_checker *c, const char *word) { return sim_lexer_is(&c->lexer, word); }
static bool is_char(const struct sim_ptx_checker *c, const char *any) { return sim_lexer_is_char(&c->lexer, any); }

bool sim_ptx_is_name(const struct sim_ptx_checker *c) {
  return sim_lexer_is_word(&c->lexer) && *c->lexer.word != '.' && !isdigit((unsigned char)*c->lexer.word);
}

bool sim_ptx_is_number(const struct sim_ptx_checker *c) {
  return sim_lexer_is_word(&c->lexer) && isdigit((unsigned char)*c->lexer.word);
}

bool sim_ptx_expect(struct sim_ptx_checker *c, const char *any) {
  if (!sim_ptx_next(c))
    return false;
  if (!is_char(c, any))
    sim_ptx_fail_here(c);
  return !c->result;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

enum { DEPTH = 32 };

/* A list of operands or values up to a character of `end` outside brackets, which becomes the current token. Two values
 * need a comma or an operator between them: where a semicolon is missing, the next statement is one value too many. */
struct list {
  char open[DEPTH]; /* the closing bracket of each that is open */
  unsigned depth;
  bool value;    /* the last token ends a value */
  bool type;     /* it is a type, as in the cast (.s64) */
  bool expected; /* a value must follow: after a comma or an operator */
};

static void bracket(struct sim_ptx_checker *c, struct list *list) {
  static const char pairs[] = "()[]{}";
  char is_open = *c->lexer.word;
  if (list->depth == DEPTH || (list->value && is_open == '{')) {
    sim_ptx_fail_here(c);
    return;
  }
  list->open[list->depth++] = strchr(pairs, is_open)[1];
  list->value = list->type = list->expected = false;
}

static void closed(struct sim_ptx_checker *c, struct list *list) {
  bool empty = !list->value && !list->type && *c->lexer.word != ')'; /* only a list of arguments may be */
  if (list->depth == 0 || list->open[list->depth - 1] != *c->lexer.word || list->expected || empty) {
    sim_ptx_fail_here(c);
    return;
  }
  list->depth--;
  list->value = !list->type; /* a cast is no value */
  list->type = false;
}

static void comma_or_operator(struct sim_ptx_checker *c, struct list *list) {
  bool starts_value = is_char(c, "+-!~"); /* a sign */
  if ((!list->value && !list->type && !starts_value) || !is_char(c, ",+-*/%|&^<>=!~?:")) {
    sim_ptx_fail_here(c);
    return;
  }
  list->value = list->type = false;
  list->expected = true;
}

static void value_or_type(struct sim_ptx_checker *c, struct list *list) {
  bool is_type = *c->lexer.word == '.';
  if (list->value && !is_type) {
    sim_ptx_fail_here(c);
    return;
  }
  sim_ptx_names_refer(&c->names, &c->lexer);
  list->type = is_type;
  list->value = !is_type;
  list->expected = false;
}

bool sim_ptx_expressions(struct sim_ptx_checker *c, const char *end) {
  struct list list = {0};
  while (sim_ptx_next(c)) {
    if (list.depth == 0 && is_char(c, end) && !list.expected)
      return true;
    if (is_char(c, "([{"))
      bracket(c, &list);
    else if (is_char(c, ")]}"))
      closed(c, &list);
    else if ((sim_lexer_is_word(&c->lexer) && !is(c, "%")) || *c->lexer.word == '"')
      value_or_type(c, &list);
    else
      comma_or_operator(c, &list);
  }
  return false;
}

bool sim_ptx_skip_to(struct sim_ptx_checker *c, const char *end) {
  unsigned depth = 0;
  while (sim_ptx_next(c)) {
    if (depth == 0 && is_char(c, end))
      return true;
    if (is_char(c, "([{"))
      depth++;
    else if (is_char(c, ")]}") && depth-- == 0)
      break;
  }
  sim_ptx_fail_here(c);
  return false;
}

/* ---- declarations ------------------------------------------------------------------------------------------------ */

static bool property(struct sim_ptx_checker *c, bool *typed) {
  if (is(c, ".align"))
    return sim_ptx_next(c) && (sim_ptx_is_number(c) || (sim_ptx_fail_here(c), false));
  if (is(c, ".attribute"))
    return sim_ptx_expect(c, "(") && sim_ptx_skip_to(c, ")");
  if (sim_ptx_type(&c->lexer))
    *typed = true;
  else if (!sim_ptx_property(&c->lexer))
    sim_ptx_fail_here(c);
  return !c->result;
}

/* The name of a variable, and the number of registers in %r<9>. */
bool sim_ptx_name(struct sim_ptx_checker *c) {
  const struct sim_lexer at = c->lexer;
  size_t count = 0;
  if (!sim_ptx_is_name(c)) {
    sim_ptx_fail_here(c);
    return false;
  }
  if (sim_lexer_ahead(&c->lexer) == '<') {
    if (!sim_ptx_expect(c, "<") || !sim_ptx_next(c))
      return false;
    count = strtoull(c->lexer.word, NULL, 10);
    if (!sim_ptx_expect(c, ">"))
      return false;
  }
  sim_ptx_names_declare(&c->names, at.word, at.length, count);
  return true;
}

/* One variable, behind its state space or a comma, up to a character of `end`, which becomes the current token. typed:
 * its type was before the comma. */
static bool variable(struct sim_ptx_checker *c, const char *end, bool typed) {
  while (sim_ptx_next(c) && *c->lexer.word == '.')
    if (!property(c, &typed))
      return false;
  if (!c->result && !typed)
    sim_ptx_fail_here(c);
  if (c->result || !sim_ptx_name(c))
    return false;
  while (sim_ptx_next(c) && is_char(c, "["))
    if (!sim_ptx_skip_to(c, "]"))
      return false;
  if (!c->result && is_char(c, "="))
    return sim_ptx_expressions(c, end);
  if (!is_char(c, end))
    sim_ptx_fail_here(c);
  return !c->result;
}

bool sim_ptx_variables(struct sim_ptx_checker *c) {
  bool more = variable(c, ",;", false);
  while (more && !is_char(c, ";"))
    more = variable(c, ",;", true);
  return more;
}

bool sim_ptx_parameters(struct sim_ptx_checker *c) {
  while (sim_ptx_next(c) && !is_char(c, ")")) {
    if (!is(c, ".param") && !is(c, ".reg")) {
      sim_ptx_fail_here(c);
      return false;
    }
    if (!variable(c, ",)", false))
      return false;
    if (is_char(c, ")"))
      return true;
  }
  return !c->result;
}
