/* Loaded programs: their kernels and variables, and the contexts they are loaded in. */
#define _GNU_SOURCE
#include "sim/memory/memory.h"
#include "sim/program/images/image.h"
#include "sim/program/implicit.h"
#include "sim/program/images/linked.h"
#include "sim/program/images/references.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FUNCTION_MAGIC = 0x66756e63 };
static struct sim_kind function_kind = {sizeof(struct sim_function), FUNCTION_MAGIC, NULL};

CUresult sim_function_get(const void *handle, struct sim_function **function) {
  *function = (struct sim_function *)(uintptr_t)handle;
  return *function && (*function)->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* True if the name is `plain`, or its mangled C++ name. */
static bool is(const char *name, const char *plain) {
  char mangled[64];
  int length = snprintf(mangled, sizeof mangled, "_Z%zu%s", strlen(plain), plain);
  return strcmp(name, plain) == 0 || strncmp(name, mangled, (size_t)length) == 0;
}

static enum sim_effect effect_of(const char *name) {
  if (is(name, "set_conditional"))
    return SIM_SETS_CONDITION;
  if (is(name, "launch_graph"))
    return SIM_LAUNCHES_GRAPH;
  return is(name, "count_conditional") ? SIM_COUNTS_CONDITION : SIM_NO_EFFECT;
}

static enum sim_words words_of(const char *name) {
  return is(name, "touch_words") ? SIM_TOUCHES_WORDS : is(name, "sum_words") ? SIM_SUMS_WORDS : SIM_NO_WORDS;
}

bool sim_collective(const char *name) { return strncmp(name, "ncclDevKernel", sizeof "ncclDevKernel" - 1) == 0; }

static struct sim_function *add_function(struct sim_image *image, struct sim_ctx *ctx, const char *name,
                                         size_t length) {
  sim_lock();
  struct sim_function *function = sim_handle_new(&function_kind);
  sim_unlock();
  if (function == NULL)
    return NULL;
  function->name = strndup(name, length);
  function->image = image;
  function->ctx = ctx;
  function->spins = function->name && is(function->name, "spin_ns");
  function->effect = function->name ? effect_of(function->name) : SIM_NO_EFFECT;
  function->words = function->name ? words_of(function->name) : SIM_NO_WORDS;
  function->work = sim_work_of(function->name ? function->name : "");
  function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = SIM_REGISTERS_ASSUMED;
  function->collective = function->name && sim_collective(function->name);
  struct sim_function **at = &image->functions;
  while (*at)
    at = &(*at)->next;
  *at = function;
  return function;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static struct sim_global *add_global(struct sim_image *image, const char *name, size_t length, size_t bytes) {
  struct sim_global *global = calloc(1, sizeof *global);
  if (global == NULL)
    return NULL;
  global->name = strndup(name, length);
  global->bytes = bytes;
  global->next = image->globals;
  image->globals = global;
  return global->name ? global : NULL;
}

static bool add_variable(struct sim_image *image, const struct sim_ptx_variable *variable) {
  bool surface = variable->kind == SIM_PTX_SURFACE;
  if (variable->kind == SIM_PTX_BYTES)
    return add_global(image, variable->name, variable->name_length, variable->bytes) != NULL;
  return sim_reference_add(&image->references, variable->name, variable->name_length, surface) != NULL;
}

static bool add_kernel(struct sim_image *image, struct sim_ctx *ctx, const struct sim_ptx_kernel *kernel) {
  struct sim_function *function = add_function(image, ctx, kernel->name, kernel->name_length);
  if (function == NULL || function->name == NULL)
    return false;
  function->nparams = kernel->nparams;
  function->params_known = kernel->params_known;
  memcpy(function->params, kernel->params, kernel->nparams * sizeof function->params[0]);
  function->attribute[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)kernel->local_bytes;
  function->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = (int)kernel->shared_bytes;
  return true;
}

static CUresult load_text(const char *text, struct sim_ctx *ctx, struct sim_image *image, char *log) {
  struct sim_ptx ptx;
  CUresult result = sim_ptx_check(text, log);
  if (result)
    return result;
  sim_ptx_read(text, &ptx);
  bool whole = !ptx.no_memory;
  for (const struct sim_ptx_kernel *kernel = ptx.kernels; whole && kernel; kernel = kernel->next)
    whole = add_kernel(image, ctx, kernel);
  for (const struct sim_ptx_variable *variable = ptx.variables; whole && variable; variable = variable->next)
    whole = add_variable(image, variable);
  sim_ptx_free(&ptx);
  return whole ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- binaries ---------------------------------------------------------------------------------------------------- */

/* Loads the inputs of a program that was linked here, of which the declarations in texts are known. */
static CUresult load_linked(struct sim_ctx *ctx, struct sim_image *image, char *log) {
  const unsigned char *data;
  size_t at = 0, length;
  bool text;
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS && sim_linked_next(image->bytes, image->size, &at, &data, &length, &text)) {
    if (text)
      result = load_text((const char *)data, ctx, image, log);
    else
      image->opaque |= length >= sizeof(Elf64_Ehdr) && sim_binary_compressed(data, length);
  }
  return result;
}

static CUresult load_binary(const void *data, struct sim_ctx *ctx, struct sim_image *image, char *log) {
  size_t size = sim_binary_bytes(data);
  if (size == 0)
    return CUDA_ERROR_INVALID_IMAGE;
  image->bytes = sim_binary_expand(data, size, &image->size);
  if (image->bytes == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  image->opaque = sim_binary_compressed(image->bytes, image->size);
  image->loaded = sim_binary_size(data, size); /* for compressed parts an estimate, as real programs have it */
  return load_linked(ctx, image, log);
}

/* True if the name occurs among the bytes as a whole word. */
static bool binary_has(const struct sim_image *image, const char *name) {
  size_t length = strlen(name), left = image->size;
  if (image->opaque)
    return true;
  for (const unsigned char *at = image->bytes; length && (at = memmem(at, left, name, length)) != NULL;) {
    size_t offset = (size_t)(at - image->bytes);
    bool starts = offset == 0 || !(isalnum(at[-1]) || at[-1] == '_');
    bool ends = offset + length == image->size || !(isalnum(at[length]) || at[length] == '_');
    if (starts && ends)
      return true;
    at++;
    left = image->size - (offset + 1);
  }
  return false;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static CUresult load(const void *data, struct sim_ctx *ctx, struct sim_image *image, char *log) {
  if (sim_image_form(data) == SIM_FORM_WRAPPER && (data = sim_wrapped(data)) == NULL)
    return CUDA_ERROR_INVALID_IMAGE;
  if (sim_image_form(data) == SIM_FORM_FATBIN || sim_image_form(data) == SIM_FORM_CUBIN)
    return load_binary(data, ctx, image, log);
  const char *text = data;
  while (isspace((unsigned char)*text))
    text++;
  if (*text != '.' && *text != '/')
    return CUDA_ERROR_INVALID_IMAGE;
  image->loaded = sim_text_size(data);
  return load_text(data, ctx, image, log);
}

CUresult sim_image_load(const void *data, struct sim_ctx *ctx, struct sim_image **out, char log[SIM_PTX_LOG]) {
  struct sim_image *image = calloc(1, sizeof *image);
  *log = '\0';
  if (image == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = load(data, ctx, image, log);
  if (result == CUDA_SUCCESS && ctx)
    result = sim_image_place(image, ctx, NULL);
  if (result)
    sim_image_free(image);
  else
    *out = image;
  return result;
}

char *sim_image_read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return NULL;
  char *data = NULL;
  long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (size > 0 && size < 1 << 30 && fseek(file, 0, SEEK_SET) == 0) {
    data = calloc(1, (size_t)size + sizeof(Elf64_Ehdr));
    if (data && fread(data, 1, (size_t)size, file) != (size_t)size) {
      free(data);
      data = NULL;
    }
  }
  fclose(file);
  *bytes = data ? (size_t)size : 0;
  return data;
}

CUresult sim_image_load_file(const char *path, struct sim_ctx *ctx, struct sim_image **out, char log[SIM_PTX_LOG]) {
  size_t bytes;
  *log = '\0';
  char *data = sim_image_read_file(path, &bytes);
  if (data == NULL)
    return access(path, R_OK) == 0 ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_FILE_NOT_FOUND;
  CUresult result = CUDA_ERROR_INVALID_IMAGE;
  enum sim_image_form form = sim_image_form(data);
  bool binary = form == SIM_FORM_CUBIN || form == SIM_FORM_FATBIN;
  if (form != SIM_FORM_WRAPPER && (!binary || sim_binary_bytes(data) <= bytes))
    result = sim_image_load(data, ctx, out, log);
  free(data);
  return result;
}

void sim_image_free(struct sim_image *image) {
  for (struct sim_function *function = image->functions, *next; function; function = next) {
    next = function->next;
    free(function->name);
    free(function->old_params);
    sim_lock();
    sim_handle_free(&function_kind, function);
    sim_unlock();
  }
  for (struct sim_global *global = image->globals, *next; global; global = next) {
    next = global->next;
    if (global->address)
      sim_memory_module_free(global->address, global->memory_id);
    free(global->name);
    free(global);
  }
  sim_references_free(image->references);
  sim_image_leave(image);
  free(image->bytes);
  free(image);
}

struct sim_function *sim_image_function(struct sim_image *image, struct sim_ctx *ctx, const char *name) {
  for (struct sim_function *function = image->functions; function; function = function->next)
    if (function->name && strcmp(function->name, name) == 0)
      return function;
  if (!image->bytes || !binary_has(image, name))
    return NULL;
  struct sim_function *function = add_function(image, ctx, name, strlen(name));
  struct sim_kernel_needs needs;
  if (function && sim_binary_kernel(image->bytes, image->size, name, &needs)) {
    function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = (int)needs.registers;
    function->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = (int)needs.shared;
    function->params_known = needs.params_known;
    function->nparams = needs.nparams;
    memcpy(function->params, needs.params, needs.nparams * sizeof function->params[0]);
  }
  return function;
}

struct sim_reference *sim_image_reference(struct sim_image *image, const char *name, bool surface) {
  struct sim_reference *found = sim_reference_find(image->references, name, surface);
  if (found || image->bytes == NULL || !binary_has(image, name))
    return found;
  return sim_reference_add(&image->references, name, strlen(name), surface);
}

/* Variables of a binary are added to the image when they are first requested. */
static CUresult find_global(struct sim_image *image, const char *name, struct sim_global **found) {
  sim_lock();
  struct sim_global *global = image->globals;
  while (global && (global->name == NULL || strcmp(global->name, name) != 0))
    global = global->next;
  uint64_t size = global || image->bytes == NULL ? 0 : sim_binary_variable(image->bytes, image->size, name);
  if (size)
    global = add_global(image, name, strlen(name), size);
  sim_unlock();
  *found = global;
  return global ? CUDA_SUCCESS : size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_FOUND;
}

CUresult sim_image_global(struct sim_image *image, struct sim_ctx *ctx, const char *name, CUdeviceptr *address,
                          size_t *bytes) {
  struct sim_global *global;
  CUresult result = find_global(image, name, &global);
  if (result == CUDA_SUCCESS &&
      (global->address == 0 || !sim_memory_module_alive(global->address, global->memory_id))) {
    size_t needed = global->bytes ? global->bytes : 1;
    result = sim_memory_module_alloc(ctx, needed, &global->address, &global->memory_id);
  }
  if (result)
    return result;
  if (address)
    *address = global->address;
  if (bytes)
    *bytes = global->bytes;
  return CUDA_SUCCESS;
}
