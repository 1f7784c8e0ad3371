/* Reading programs: PTX text for its entries, their parameters and variables; binaries for the names in them. */
#define _GNU_SOURCE
#include "sim/memory/memory.h"
#include "sim/program/image.h"
#include "sim/program/implicit.h"
#include "image/gs_image.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUNCTION_MAGIC = 0x66756e63, WRAPPER_MAGIC = 0x466243b1 };
static const uint32_t fatbin_magic = 0xba55ed50;
static struct sim_kind function_kind = {sizeof(struct sim_function), FUNCTION_MAGIC, NULL};

/* What nvcc's host code registers: a pointer to the fatbin proper. */
struct wrapper {
  uint32_t magic, version;
  const void *data;
  void *file;
};
struct fatbin {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes; /* after the header */
};
struct fatbin_entry {
  uint16_t kind, unknown;
  uint32_t header_bytes;
  uint64_t bytes; /* after this header */
  uint32_t compressed_bytes;
};

CUresult sim_function_get(const void *handle, struct sim_function **function) {
  CUresult result = sim_ready();
  if (result)
    return result;
  *function = (struct sim_function *)(uintptr_t)handle;
  return *function && (*function)->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* spin_ns, also as C++ names it. */
static bool spins(const char *name) { return strcmp(name, "spin_ns") == 0 || strncmp(name, "_Z7spin_ns", 10) == 0; }

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
  function->spins = function->name && spins(function->name);
  function->collective = function->name && sim_collective(function->name);
  struct sim_function **at = &image->functions;
  while (*at)
    at = &(*at)->next;
  *at = function;
  return function;
}

/* ---- PTX --------------------------------------------------------------------------------------------------------- */

struct text {
  const char *at;
};

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%'; }

/* The next word (with a leading dot if it is a directive) or single character; false at the end. */
static bool token(struct text *text, const char **start, size_t *length) {
  const char *p = text->at;
  for (;;) {
    while (isspace((unsigned char)*p))
      p++;
    if (p[0] == '/' && p[1] == '/') {
      while (*p && *p != '\n')
        p++;
    } else if (p[0] == '/' && p[1] == '*') {
      const char *end = strstr(p + 2, "*/");
      if (end == NULL)
        return false;
      p = end + 2;
    } else {
      break;
    }
  }
  if (*p == '\0')
    return false;
  *start = p;
  if (*p == '"')
    do
      p++;
    while (*p && *p != '"');
  if (word_char(*p))
    while (word_char(*p))
      p++;
  else if (*p)
    p++;
  *length = (size_t)(p - *start);
  text->at = p;
  return true;
}

static bool is(const char *start, size_t length, const char *word) {
  return strlen(word) == length && memcmp(start, word, length) == 0;
}

/* .u8 .b16 .f32 .s64 .f16x2 .b128 ... -> bytes, 0 if it is no type */
static size_t type_bytes(const char *start, size_t length) {
  if (length < 3 || start[0] != '.' || strchr("usbf", start[1]) == NULL || !isdigit((unsigned char)start[2]))
    return 0;
  size_t bits = strtoul(start + 2, NULL, 10);
  return is(start, length, ".f16x2") || is(start, length, ".bf16x2") ? 4 : bits / 8;
}

struct variable {
  const char *name;
  size_t name_length, element, count, align;
};

/* After .param, .global or .const: alignment, type, name, dimensions, up to one of `, ; ) = `. */
static bool variable(struct text *text, struct variable *out) {
  const char *start;
  size_t length;
  *out = (struct variable){.count = 1};
  while (token(text, &start, &length)) {
    if (length == 1 && strchr(",;)={", *start)) {
      text->at = start;
      break;
    }
    if (is(start, length, ".align")) {
      if (!token(text, &start, &length))
        return false;
      out->align = strtoul(start, NULL, 10);
    } else if (*start == '[') {
      if (!token(text, &start, &length))
        return false;
      out->count *= *start == ']' ? 0 : strtoul(start, NULL, 10);
    } else if (*start == '.') {
      size_t bytes = type_bytes(start, length);
      if (bytes)
        out->element = bytes;
    } else if (word_char(*start) && !isdigit((unsigned char)*start)) {
      out->name = start;
      out->name_length = length;
    }
  }
  if (out->align == 0)
    out->align = out->element ? out->element : 1;
  return out->name != NULL;
}

static void entry_parameters(struct text *text, struct sim_function *function) {
  const char *start;
  size_t length, offset = 0;
  function->params_known = true;
  while (token(text, &start, &length) && *start != ')' && *start != '{') {
    struct variable parameter;
    if (!is(start, length, ".param") || !variable(text, &parameter))
      continue;
    if (function->nparams == SIM_PARAMS_MAX) {
      function->params_known = false;
      return;
    }
    offset = (offset + parameter.align - 1) / parameter.align * parameter.align;
    function->params[function->nparams++] = (struct sim_param){offset, parameter.element * parameter.count};
    offset += parameter.element * parameter.count;
  }
}

static void add_global(struct sim_image *image, const struct variable *variable_) {
  struct sim_global *global = calloc(1, sizeof *global);
  if (global == NULL)
    return;
  global->name = strndup(variable_->name, variable_->name_length);
  global->bytes = variable_->element * variable_->count;
  global->next = image->globals;
  image->globals = global;
}

/* Locals of a kernel's body are one frame. */
static void add_local(struct sim_function *function, const struct variable *variable_) {
  size_t at =
      ((size_t)function->attribute[SIM_ATTRIBUTE_LOCAL] + variable_->align - 1) / variable_->align * variable_->align;
  function->attribute[SIM_ATTRIBUTE_LOCAL] = (int)(at + variable_->element * variable_->count);
}

static CUresult load_ptx(const char *data, struct sim_ctx *ctx, struct sim_image *image) {
  struct text text = {data};
  const char *start;
  size_t length;
  int depth = 0;
  bool version = false;
  struct sim_function *body = NULL; /* whose body the text is in */
  while (token(&text, &start, &length)) {
    depth += *start == '{';
    depth -= *start == '}';
    if (depth == 0 && (*start == '}' || *start == ';'))
      body = NULL;
    if (is(start, length, ".version"))
      version = true;
    if (depth == 0 && is(start, length, ".entry")) {
      if (!token(&text, &start, &length))
        return CUDA_ERROR_INVALID_PTX;
      struct sim_function *function = add_function(image, ctx, start, length);
      if (function == NULL || function->name == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
      body = function;
      const char *after = text.at;
      bool parameters = token(&text, &start, &length) && *start == '(';
      if (parameters)
        entry_parameters(&text, function);
      else
        text.at = after;
      function->params_known |= !parameters;
    } else if (depth == 0 && (is(start, length, ".global") || is(start, length, ".const"))) {
      struct variable found;
      if (variable(&text, &found))
        add_global(image, &found);
    } else if (depth > 0 && body && is(start, length, ".local")) {
      struct variable found;
      if (variable(&text, &found))
        add_local(body, &found);
    }
  }
  return version ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

/* ---- binaries ---------------------------------------------------------------------------------------------------- */

static size_t elf_bytes(const unsigned char *data) {
  Elf64_Ehdr header;
  memcpy(&header, data, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64)
    return 0;
  size_t sections = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
  size_t segments = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
  return sections > segments ? sections : segments;
}

/* 0 where the header cannot be right. */
static size_t fatbin_bytes(const struct fatbin *header) {
  bool sane = header->header_bytes >= sizeof *header && header->bytes <= 1u << 30;
  return sane ? header->header_bytes + header->bytes : 0;
}

static bool has_compressed(const unsigned char *data, size_t size) {
  struct fatbin header;
  memcpy(&header, data, sizeof header);
  for (size_t at = header.header_bytes; at + sizeof(struct fatbin_entry) <= size;) {
    struct fatbin_entry entry;
    memcpy(&entry, data + at, sizeof entry);
    if (entry.compressed_bytes)
      return true;
    if (entry.header_bytes == 0 || entry.bytes > size)
      break;
    at += entry.header_bytes + entry.bytes;
  }
  return false;
}

static CUresult load_binary(const unsigned char *data, size_t size, struct sim_image *image) {
  if (size == 0 || size > 1u << 30)
    return CUDA_ERROR_INVALID_IMAGE;
  image->bytes = malloc(size);
  if (image->bytes == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(image->bytes, data, size);
  image->size = size;
  return CUDA_SUCCESS;
}

/* The name as a whole word among the bytes. */
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

static CUresult load(const void *data, struct sim_ctx *ctx, struct sim_image *image) {
  uint32_t magic;
  memcpy(&magic, data, sizeof magic); /* the shortest image of any kind is longer */
  if (magic == WRAPPER_MAGIC) {
    struct wrapper wrapper;
    memcpy(&wrapper, data, sizeof wrapper);
    if (wrapper.data == NULL)
      return CUDA_ERROR_INVALID_IMAGE;
    data = wrapper.data;
    memcpy(&magic, data, sizeof magic);
  }
  if (magic == fatbin_magic) {
    struct fatbin header;
    memcpy(&header, data, sizeof header);
    CUresult result = load_binary(data, fatbin_bytes(&header), image);
    if (result == CUDA_SUCCESS)
      image->opaque = has_compressed(image->bytes, image->size);
    return result;
  }
  if (memcmp(data, ELFMAG, SELFMAG) == 0)
    return load_binary(data, elf_bytes(data), image);
  const char *text = data;
  while (isspace((unsigned char)*text))
    text++;
  if (*text != '.' && *text != '/')
    return CUDA_ERROR_INVALID_IMAGE;
  return load_ptx(text, ctx, image);
}

CUresult sim_image_load(const void *data, struct sim_ctx *ctx, struct sim_image **out) {
  struct sim_image *image = calloc(1, sizeof *image);
  if (image == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = load(data, ctx, image);
  if (result == CUDA_SUCCESS)
    image->loaded = gs_image_size(data, SIZE_MAX, 10 * SIM_CAPABILITY_MAJOR + SIM_CAPABILITY_MINOR);
  if (result == CUDA_SUCCESS && ctx)
    result = sim_image_place(image, ctx, NULL);
  if (result)
    sim_image_free(image);
  else
    *out = image;
  return result;
}

static unsigned parts_locked(struct sim_image *image) {
  unsigned count = 0;
  for (const struct sim_function *function = image->functions; function; function = function->next)
    count++;
  if (image->parts == 0)
    image->parts = count;
  return image->parts ? image->parts : 1;
}

unsigned sim_image_parts(struct sim_image *image) {
  sim_lock();
  unsigned parts = parts_locked(image);
  sim_unlock();
  return parts;
}

static bool placed_locked(const struct sim_image *image, const struct sim_ctx *ctx, const void *part) {
  for (const struct sim_placed *placed = image->placed; placed; placed = placed->next)
    if (placed->ctx == ctx && placed->id == ctx->id && placed->part == part)
      return true;
  return false;
}

static CUresult place(struct sim_image *image, struct sim_ctx *ctx, const void *part) {
  bool code = part != image;
  sim_lock();
  if (placed_locked(image, ctx, part) || (code && placed_locked(image, ctx, NULL))) {
    sim_unlock();
    return CUDA_SUCCESS;
  }
  struct sim_placed *placed = malloc(sizeof *placed);
  unsigned parts = part ? parts_locked(image) : 1;
  uint64_t bytes = code ? (image->loaded.code + parts - 1) / parts : image->loaded.data;
  CUresult result = placed ? sim_code_load(ctx, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    *placed = (struct sim_placed){ctx, ctx->id, part, bytes, image->placed};
    image->placed = placed;
  } else {
    free(placed);
  }
  sim_unlock();
  return result;
}

static void displace(struct sim_image *image, struct sim_ctx *ctx, const void *part) {
  sim_lock();
  struct sim_placed **at = &image->placed;
  while (*at && !((*at)->ctx == ctx && (*at)->id == ctx->id && (*at)->part == part))
    at = &(*at)->next;
  struct sim_placed *gone = *at;
  if (gone) {
    *at = gone->next;
    sim_code_unload(ctx, gone->bytes);
    free(gone);
  }
  sim_unlock();
}

CUresult sim_image_place(struct sim_image *image, struct sim_ctx *ctx, const void *part) {
  sim_lock();
  bool had = placed_locked(image, ctx, image);
  sim_unlock();
  CUresult result = place(image, ctx, image);
  if (result == CUDA_SUCCESS && part != image)
    result = place(image, ctx, part);
  if (result && !had)
    displace(image, ctx, image);
  return result;
}

static void leave_contexts(struct sim_image *image) {
  sim_lock();
  for (struct sim_placed *placed = image->placed, *next; placed; placed = next) {
    next = placed->next;
    if (placed->ctx->alive && placed->ctx->id == placed->id)
      sim_code_unload(placed->ctx, placed->bytes);
    free(placed);
  }
  sim_unlock();
}

CUresult sim_image_load_file(const char *path, struct sim_ctx *ctx, struct sim_image **out) {
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult result = CUDA_ERROR_INVALID_IMAGE;
  char *data = NULL;
  long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (size > 0 && size < 1 << 30 && fseek(file, 0, SEEK_SET) == 0) {
    /* Zeros behind it: PTX is text, and the headers of a truncated binary must not be read beyond the buffer. */
    data = calloc(1, (size_t)size + sizeof(Elf64_Ehdr));
    if (data && fread(data, 1, (size_t)size, file) == (size_t)size) {
      struct fatbin header;
      memcpy(&header, data, sizeof header);
      bool whole = memcmp(data, ELFMAG, SELFMAG) == 0
                       ? elf_bytes((unsigned char *)data) <= (size_t)size
                       : header.magic != fatbin_magic || fatbin_bytes(&header) <= (size_t)size;
      if (whole && header.magic != WRAPPER_MAGIC)
        result = sim_image_load(data, ctx, out);
    }
  }
  fclose(file);
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
  leave_contexts(image);
  free(image->bytes);
  free(image);
}

struct sim_function *sim_image_function(struct sim_image *image, struct sim_ctx *ctx, const char *name) {
  for (struct sim_function *function = image->functions; function; function = function->next)
    if (function->name && strcmp(function->name, name) == 0)
      return function;
  return image->bytes && binary_has(image, name) ? add_function(image, ctx, name, strlen(name)) : NULL;
}

CUresult sim_image_global(struct sim_image *image, struct sim_ctx *ctx, const char *name, CUdeviceptr *address,
                          size_t *bytes) {
  for (struct sim_global *global = image->globals; global; global = global->next) {
    if (global->name == NULL || strcmp(global->name, name) != 0)
      continue;
    if (global->address == 0 || !sim_memory_module_alive(global->address, global->memory_id)) {
      size_t needed = global->bytes ? global->bytes : 1;
      CUresult result = sim_memory_module_alloc(ctx, needed, &global->address, &global->memory_id);
      if (result)
        return result;
    }
    if (address)
      *address = global->address;
    if (bytes)
      *bytes = global->bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
