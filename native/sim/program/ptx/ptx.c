#include "sim/program/ptx/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "sim/program/ptx/ptx_lexer.h"

/* Size in bytes of a fundamental type; 0 if the word is not one. */
static size_t type_bytes(const struct sim_lexer *lexer) {
  static const struct {
    const char *name;
    size_t bytes;
  } types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},   {".b16", 2},    {".u16", 2},   {".s16", 2}, {".f16", 2},
               {".b32", 4}, {".u32", 4}, {".s32", 4},  {".f32", 4},    {".f16x2", 4}, {".b64", 8}, {".u64", 8},
               {".s64", 8}, {".f64", 8}, {".bf16", 2}, {".bf16x2", 4}, {".b128", 16}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (sim_lexer_is(lexer, types[i].name))
      return types[i].bytes;
  return 0;
}

/* ---- declarations ------------------------------------------------------------------------------------------------ */

struct declared {
  enum sim_ptx_kind kind;
  const char *name;
  size_t name_length, element, count, align;
  bool open;     /* an array without a length: it has the length of its initialiser */
  size_t values; /* number of values in the initialiser */
};

static size_t bytes_of(const struct declared *one) {
  size_t bytes, count = one->open && one->values ? one->count * one->values : one->count;
  return __builtin_mul_overflow(one->element, count, &bytes) ? SIZE_MAX : bytes;
}

/* Counts the values of an initialiser, nested or not, up to the closing brace. */
static size_t initialiser(struct sim_lexer *lexer) {
  size_t values = 1, depth = 1;
  while (depth > 0 && sim_lexer_next(lexer)) {
    depth += sim_lexer_is_char(lexer, "{");
    depth -= sim_lexer_is_char(lexer, "}");
    values += sim_lexer_is_char(lexer, ",");
  }
  return values;
}

static void dimension(struct sim_lexer *lexer, struct declared *out) {
  if (!sim_lexer_next(lexer))
    return;
  if (sim_lexer_is_char(lexer, "]"))
    out->open = true;
  else if (__builtin_mul_overflow(out->count, strtoull(lexer->word, NULL, 10), &out->count))
    out->count = SIZE_MAX;
}

/* Parses one declarator with its initialiser, after a state space (.param, .global...) or after the comma of a list,
 * whose type and alignment are then in *out. Stops at one of `, ; ) {`, which becomes the current token. False if it
 * has no name. */
static bool declarator(struct sim_lexer *lexer, struct declared *out) {
  bool value = false; /* after the equals sign */
  *out = (struct declared){.kind = out->kind, .element = out->element, .align = out->align, .count = 1};
  while (sim_lexer_next(lexer) && !sim_lexer_is_char(lexer, ",;)")) {
    size_t type = type_bytes(lexer);
    if (sim_lexer_is_char(lexer, "="))
      value = true;
    else if (sim_lexer_is_char(lexer, "{") && value)
      out->values = initialiser(lexer);
    else if (sim_lexer_is_char(lexer, "{"))
      break;
    else if (value)
      continue;
    else if (sim_lexer_is(lexer, ".texref") || sim_lexer_is(lexer, ".surfref"))
      out->kind = sim_lexer_is(lexer, ".texref") ? SIM_PTX_TEXTURE : SIM_PTX_SURFACE;
    else if (sim_lexer_is(lexer, ".align") && sim_lexer_next(lexer))
      out->align = strtoul(lexer->word, NULL, 10);
    else if (sim_lexer_is_char(lexer, "["))
      dimension(lexer, out);
    else if (type)
      out->element = type;
    else if (sim_lexer_is_word(lexer) && *lexer->word != '.' && !isdigit((unsigned char)*lexer->word)) {
      out->name = lexer->word;
      out->name_length = lexer->length;
    }
  }
  if (out->align == 0)
    out->align = out->element ? out->element : 1;
  return out->name != NULL;
}

static size_t aligned(size_t at, const struct declared *one) { return (at + one->align - 1) / one->align * one->align; }

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static void parameters(struct sim_lexer *lexer, struct sim_ptx_kernel *kernel) {
  size_t offset = 0;
  while (sim_lexer_next(lexer) && !sim_lexer_is_char(lexer, "){")) {
    struct declared one = {0};
    if (!sim_lexer_is(lexer, ".param"))
      continue;
    bool named = declarator(lexer, &one);
    size_t bytes = named ? bytes_of(&one) : 0;
    offset = named ? aligned(offset, &one) : offset;
    if (named &&
        (kernel->nparams == SIM_PARAMS_MAX || bytes > SIM_ARGUMENTS_MAX || offset > SIM_ARGUMENTS_MAX - bytes)) {
      kernel->params_known = false;
      return;
    }
    if (named) {
      kernel->params[kernel->nparams++] = (struct sim_param){(uint16_t)offset, (uint16_t)bytes};
      offset += bytes;
    }
    if (sim_lexer_is_char(lexer, "){"))
      return;
  }
}

static struct sim_ptx_kernel *entry(struct sim_lexer *lexer, struct sim_ptx *out) {
  sim_lexer_next(lexer);
  struct sim_ptx_kernel **end = &out->kernels, *kernel = calloc(1, sizeof *kernel);
  if (kernel == NULL) {
    out->no_memory = true;
    return NULL;
  }
  *kernel = (struct sim_ptx_kernel){.name = lexer->word, .name_length = lexer->length, .params_known = true};
  while (*end)
    end = &(*end)->next;
  *end = kernel;
  if (sim_lexer_ahead(lexer) == '(' && sim_lexer_next(lexer))
    parameters(lexer, kernel);
  return kernel;
}

static void globals(struct sim_lexer *lexer, enum sim_ptx_kind kind, struct sim_ptx *out) {
  struct declared one = {.kind = kind};
  do {
    struct sim_ptx_variable *variable = NULL;
    if (!declarator(lexer, &one))
      continue;
    variable = calloc(1, sizeof *variable);
    if (variable == NULL) {
      out->no_memory = true;
      return;
    }
    uint64_t bytes = one.kind == SIM_PTX_BYTES ? bytes_of(&one) : 0;
    *variable = (struct sim_ptx_variable){one.kind, one.name, one.name_length, bytes, out->variables};
    out->variables = variable;
  } while (sim_lexer_is_char(lexer, ","));
}

/* Adds the variables of a declaration in a kernel's body to those of their kind, which form one frame. */
static void add_variables(struct sim_lexer *lexer, size_t *frame) {
  struct declared one = {0};
  do {
    if (declarator(lexer, &one))
      *frame = aligned(*frame, &one) + bytes_of(&one);
  } while (sim_lexer_is_char(lexer, ","));
}

void sim_ptx_read(const char *text, struct sim_ptx *out) {
  struct sim_lexer lexer = {.at = text};
  struct sim_ptx_kernel *body = NULL; /* the kernel whose body is being parsed */
  int depth = 0;
  *out = (struct sim_ptx){0};
  while (!out->no_memory && sim_lexer_next(&lexer)) {
    if (depth == 0 && sim_lexer_is(&lexer, ".entry"))
      body = entry(&lexer, out);
    else if (depth == 0 && (sim_lexer_is(&lexer, ".global") || sim_lexer_is(&lexer, ".const")))
      globals(&lexer, SIM_PTX_BYTES, out);
    else if (depth == 0 &&
             (sim_lexer_is(&lexer, ".tex") || sim_lexer_is(&lexer, ".surf"))) /* the older way to declare a reference */
      globals(&lexer, sim_lexer_is(&lexer, ".tex") ? SIM_PTX_TEXTURE : SIM_PTX_SURFACE, out);
    else if (depth > 0 && body && sim_lexer_is(&lexer, ".local"))
      add_variables(&lexer, &body->local_bytes);
    else if (depth > 0 && body && sim_lexer_is(&lexer, ".shared"))
      add_variables(&lexer, &body->shared_bytes);
    depth += sim_lexer_is_char(&lexer, "{");
    depth -= sim_lexer_is_char(&lexer, "}");
    if (depth == 0 && sim_lexer_is_char(&lexer, "};"))
      body = NULL;
  }
}

void sim_ptx_free(struct sim_ptx *ptx) {
  while (ptx->kernels) {
    struct sim_ptx_kernel *kernel = ptx->kernels;
    ptx->kernels = kernel->next;
    free(kernel);
  }
  while (ptx->variables) {
    struct sim_ptx_variable *variable = ptx->variables;
    ptx->variables = variable->next;
    free(variable);
  }
}
