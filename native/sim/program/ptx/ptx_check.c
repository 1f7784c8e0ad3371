#include "sim/program/ptx/ptx_check.h"

#include <stdio.h>

#include "sim/model/card.h"
#include "sim/program/ptx/ptx_syntax.h"

static bool is(const struct sim_ptx_checker *c, const char *word) { return sim_lexer_is(&c->lexer, word); }
static bool is_char(const struct sim_ptx_checker *c, const char *any) { return sim_lexer_is_char(&c->lexer, any); }

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static bool of(const struct sim_ptx_checker *c, const char *const *list) {
  for (; *list; list++)
    if (is(c, *list))
      return true;
  return false;
}

static const char *const spaces[] = {".reg",    ".local", ".shared",  ".param", ".const",
                                     ".global", ".tex",   ".sampler", ".surf",  NULL};
static const char *const lines[] = {".loc", ".file", NULL}; /* these end with their line */
static const char *const notes[] = {".pragma", ".branchtargets", ".calltargets", ".callprototype", ".alias", NULL};

static bool instruction(struct sim_ptx_checker *c) {
  if (is_char(c, "@")) {
    if (!sim_ptx_next(c) || (is_char(c, "!") && !sim_ptx_next(c)))
      return false;
    if (sim_ptx_is_name(c))
      sim_ptx_names_refer(&c->names, &c->lexer);
    else
      sim_ptx_fail_here(c);
    if (!sim_ptx_next(c))
      return false;
  }
  size_t at, length;
  if (!sim_ptx_is_name(c))
    sim_ptx_fail_here(c);
  else if (!sim_ptx_instruction(&c->lexer))
    sim_ptx_fail(c, CUDA_ERROR_INVALID_PTX, c->lexer.word, "error   : Not a name of any known instruction: '%.*s'",
                 c->lexer.length > SIM_PTX_NEAR ? SIM_PTX_NEAR : (int)c->lexer.length, c->lexer.word);
  else if (sim_ptx_odd_modifier(&c->lexer, &at, &length))
    sim_ptx_fail(c, CUDA_ERROR_INVALID_PTX, c->lexer.word, "error   : Unknown modifier '%.*s'",
                 length > SIM_PTX_NEAR ? SIM_PTX_NEAR : (int)length, c->lexer.word + at);
  return !c->result && sim_ptx_expressions(c, ";");
}

static bool statement(struct sim_ptx_checker *c) {
  if (of(c, spaces))
    return sim_ptx_variables(c);
  if (of(c, notes))
    return sim_ptx_skip_to(c, ";");
  if (of(c, lines)) {
    sim_lexer_skip_line(&c->lexer);
    return true;
  }
  if (sim_ptx_is_name(c) && sim_lexer_ahead(&c->lexer) == ':') {
    sim_ptx_names_declare(&c->names, c->lexer.word, c->lexer.length, 0);
    return sim_ptx_expect(c, ":");
  }
  return instruction(c);
}

/* Behind the opening brace. */
static bool body(struct sim_ptx_checker *c) {
  unsigned depth = 1;
  while (depth > 0 && sim_ptx_next(c)) {
    if (is_char(c, "{"))
      depth++;
    else if (is_char(c, "}"))
      depth--;
    else if (!statement(c))
      return false;
  }
  return !c->result;
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static const char *const of_functions[] = {".maxntid",
                                           ".reqntid",
                                           ".minnctapersm",
                                           ".maxnctapersm",
                                           ".maxnreg",
                                           ".noreturn",
                                           ".pragma",
                                           ".explicitcluster",
                                           ".reqnctapercluster",
                                           ".maxclusterrank",
                                           ".attribute",
                                           ".abi_preserve",
                                           ".blocksareclusters",
                                           ".unified",
                                           ".abi_preserve_control",
                                           ".local_maxnreg",
                                           NULL};

/* A function or kernel, behind .func or .entry. */
static bool function(struct sim_ptx_checker *c, bool kernel) {
  if (!kernel && sim_lexer_ahead(&c->lexer) == '(' && !(sim_ptx_next(c) && sim_ptx_parameters(c)))
    return false;
  if (!sim_ptx_next(c) || !sim_ptx_name(c))
    return false;
  if (sim_lexer_ahead(&c->lexer) == '(' && !(sim_ptx_next(c) && sim_ptx_parameters(c)))
    return false;
  while (sim_ptx_next(c) && !is_char(c, "{;")) {
    bool argument = sim_ptx_is_number(c) || is_char(c, ",") || *c->lexer.word == '"';
    if (is_char(c, "(")) {
      if (!sim_ptx_skip_to(c, ")"))
        return false;
    } else if (!argument && !of(c, of_functions)) {
      sim_ptx_fail_here(c);
    }
  }
  return !c->result && (is_char(c, ";") || body(c));
}

/* Debugging information. */
static bool section(struct sim_ptx_checker *c) {
  while (sim_ptx_next(c))
    if (is_char(c, "{"))
      return sim_ptx_skip_to(c, "}");
  return false;
}

static bool top(struct sim_ptx_checker *c) {
  static const char *const linkage[] = {".visible", ".extern", ".weak", ".common", NULL};
  if (of(c, linkage))
    return true;
  if (is(c, ".entry") || is(c, ".func"))
    return function(c, is(c, ".entry"));
  if (is(c, ".section"))
    return section(c);
  if (is(c, ".address_size"))
    return sim_ptx_next(c) && (is(c, "64") || is(c, "32") || (sim_ptx_fail_here(c), false));
  if (is_char(c, "@") || of(c, lines)) { /* @@DWARF: debugging information of old compilers */
    sim_lexer_skip_line(&c->lexer);
    return true;
  }
  if (of(c, spaces))
    return sim_ptx_variables(c);
  if (of(c, notes))
    return sim_ptx_skip_to(c, ";");
  sim_ptx_fail_here(c);
  return false;
}

/* Of the driver's CUDA version: https://docs.nvidia.com/cuda/parallel-thread-execution/#release-notes */
enum { NEWEST_MAJOR = 9, NEWEST_MINOR = 0 };

static bool version(struct sim_ptx_checker *c) {
  unsigned major, minor;
  int length = 0;
  if (!sim_lexer_next(&c->lexer) || !is(c, ".version")) {
    sim_ptx_fail(c, CUDA_ERROR_INVALID_PTX, c->lexer.word, "fatal   : Missing .version directive at start of file");
    return false;
  }
  if (!sim_ptx_next(c))
    return false;
  if (sscanf(c->lexer.word, "%2u.%2u%n", &major, &minor, &length) != 2 || (size_t)length != c->lexer.length)
    sim_ptx_fail_here(c);
  else if (major > NEWEST_MAJOR || (major == NEWEST_MAJOR && minor > NEWEST_MINOR))
    sim_ptx_fail(c, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, c->lexer.word,
                 "fatal   : Unsupported .version %u.%u; current version is '%d.%d'", major, minor, NEWEST_MAJOR,
                 NEWEST_MINOR);
  return !c->result;
}

static bool architecture(struct sim_ptx_checker *c) {
  static const unsigned known[] = {10, 11, 12, 13, 20, 21, 30, 32, 35, 37,  50,  52,  53,  60,  61, 62,
                                   70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121};
  unsigned number = 0;
  int length = 0;
  bool named = sscanf(c->lexer.word, "sm_%3u%n", &number, &length) == 1, found = false;
  if (named && (c->lexer.word[length] == 'a' || c->lexer.word[length] == 'f'))
    length++;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    found |= known[i] == number;
  if (!named || !found || (size_t)length != c->lexer.length)
    sim_ptx_fail_here(c);
  else if (number > 10 * SIM_CAPABILITY_MAJOR + SIM_CAPABILITY_MINOR)
    sim_ptx_fail(c, CUDA_ERROR_INVALID_PTX, c->lexer.word,
                 "fatal   : SM version specified by .target is higher than default SM version assumed");
  return !c->result;
}

static bool target(struct sim_ptx_checker *c) {
  static const char *const modes[] = {"texmode_unified", "texmode_independent", "map_f64_to_f32", "debug", NULL};
  if (!sim_lexer_next(&c->lexer) || !is(c, ".target")) {
    sim_ptx_fail(c, CUDA_ERROR_INVALID_PTX, c->lexer.word, "fatal   : Missing .target directive");
    return false;
  }
  do {
    if (!sim_ptx_next(c) || !(of(c, modes) || architecture(c)))
      return false;
  } while (sim_lexer_ahead(&c->lexer) == ',' && sim_ptx_next(c));
  return true;
}

CUresult sim_ptx_check(const char *text, char log[SIM_PTX_LOG]) {
  struct sim_ptx_checker c = {.lexer = {.at = text}, .text = text, .log = log};
  bool good = version(&c) && target(&c);
  while (good && sim_lexer_next(&c.lexer))
    good = top(&c);
  const struct sim_ptx_name *unknown = good ? sim_ptx_names_unknown(&c.names) : NULL;
  if (c.names.no_memory && !c.result)
    c.result = CUDA_ERROR_OUT_OF_MEMORY;
  else if (unknown)
    sim_ptx_fail(&c, CUDA_ERROR_INVALID_PTX, unknown->at, "error   : Unknown symbol '%.*s'",
                 unknown->length > SIM_PTX_NEAR ? SIM_PTX_NEAR : (int)unknown->length, unknown->at);
  sim_ptx_names_free(&c.names);
  return c.result;
}
