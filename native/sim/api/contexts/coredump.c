/* Attributes of core dumps: stored and returned as a driver does. No kernel of this device fails, so none is dumped. */
#include "sim/api/contexts/coredump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/model/model.h"
#include "sim_api.h"

enum attribute {
  ON_EXCEPTION = 1,
  TRIGGER_HOST,
  LIGHTWEIGHT,
  USER_TRIGGER,
  DUMP_FILE,
  PIPE,
  GENERATION_FLAGS,
  ATTRIBUTES
};
enum { PATH_BYTES = 1024, FLAGS_ALL = 0x3f, FLAGS_LIGHTWEIGHT = 0x2f, FLAG_SKIP_ABORT = 1 << 4 };

struct sim_coredump {
  bool on[USER_TRIGGER + 1]; /* by attribute; LIGHTWEIGHT and TRIGGER_HOST are kept in flags */
  char path[2][PATH_BYTES];  /* DUMP_FILE, PIPE */
  int flags;
};

static struct sim_coredump of_process; /* under sim_lock */
static unsigned fixed;                 /* attributes that the environment has set for good, one bit each */

static size_t bytes_of(enum attribute attribute) {
  return attribute <= USER_TRIGGER ? sizeof(bool) : attribute == GENERATION_FLAGS ? sizeof(int) : PATH_BYTES;
}

/* ---- one attribute ----------------------------------------------------------------------------------------------- */

static bool get_bool(const struct sim_coredump *from, enum attribute attribute) {
  if (attribute == LIGHTWEIGHT)
    return (from->flags & FLAGS_LIGHTWEIGHT) == FLAGS_LIGHTWEIGHT;
  return attribute == TRIGGER_HOST ? (from->flags & FLAG_SKIP_ABORT) == 0 : from->on[attribute];
}

static void set_bool(struct sim_coredump *into, enum attribute attribute, bool on) {
  if (attribute == LIGHTWEIGHT)
    into->flags = on ? into->flags | FLAGS_LIGHTWEIGHT : into->flags & ~FLAGS_LIGHTWEIGHT;
  else if (attribute == TRIGGER_HOST)
    into->flags = on ? into->flags & ~FLAG_SKIP_ABORT : into->flags | FLAG_SKIP_ABORT;
  else
    into->on[attribute] = on;
}

static CUresult get(const struct sim_coredump *from, enum attribute attribute, void *value, size_t *size) {
  bool on = attribute <= USER_TRIGGER && get_bool(from, attribute);
  const char *path = attribute == DUMP_FILE ? from->path[0] : from->path[1];
  const void *found = attribute <= USER_TRIGGER       ? &on
                      : attribute == GENERATION_FLAGS ? (const void *)&from->flags
                                                      : path;
  size_t bytes = attribute == DUMP_FILE || attribute == PIPE ? strlen(path) + 1 : bytes_of(attribute);
  if (*size < bytes)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(value, found, bytes);
  *size = bytes;
  return CUDA_SUCCESS;
}

static CUresult set(struct sim_coredump *into, enum attribute attribute, const void *value, size_t size) {
  int flags;
  if (fixed & 1u << attribute)
    return CUDA_ERROR_NOT_PERMITTED;
  if (attribute <= USER_TRIGGER) {
    if (size < sizeof(bool))
      return CUDA_ERROR_INVALID_VALUE;
    set_bool(into, attribute, *(const unsigned char *)value != 0);
    return CUDA_SUCCESS;
  }
  if (attribute == GENERATION_FLAGS) {
    if (size < sizeof flags)
      return CUDA_ERROR_INVALID_VALUE;
    memcpy(&flags, value, sizeof flags);
    if (flags & ~FLAGS_ALL)
      return CUDA_ERROR_INVALID_VALUE;
    into->flags = flags;
    return CUDA_SUCCESS;
  }
  if (attribute == PIPE && into->on[USER_TRIGGER])
    return CUDA_ERROR_NOT_PERMITTED; /* it is open already */
  size_t length = strnlen(value, size);
  if (length == 0 || length >= PATH_BYTES)
    return CUDA_ERROR_INVALID_VALUE;
  char *path = into->path[attribute == PIPE];
  memcpy(path, value, length);
  path[length] = '\0';
  return CUDA_SUCCESS;
}

/* ---- the start --------------------------------------------------------------------------------------------------- */

/* Variables that NVIDIA documents with cuda-gdb. */
static const struct {
  const char *name;
  enum attribute attribute;
} variables[] = {{"CUDA_ENABLE_COREDUMP_ON_EXCEPTION", ON_EXCEPTION},
                 {"CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION", TRIGGER_HOST},
                 {"CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", LIGHTWEIGHT},
                 {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP", USER_TRIGGER},
                 {"CUDA_COREDUMP_FILE", DUMP_FILE},
                 {"CUDA_COREDUMP_PIPE", PIPE}};

static void default_path(char path[PATH_BYTES], const char *kind) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  snprintf(path, PATH_BYTES, "%s.cuda.%s.%d", kind, host, (int)getpid());
}

/* Requires sim_lock. */
static void start(void) {
  static bool started;
  if (started)
    return;
  started = true;
  default_path(of_process.path[0], "core");
  default_path(of_process.path[1], "corepipe");
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    const char *value = getenv(variables[i].name);
    if (value == NULL || *value == '\0')
      continue;
    bool on = strcmp(value, "0") != 0;
    bool path = variables[i].attribute == DUMP_FILE || variables[i].attribute == PIPE;
    if (set(&of_process, variables[i].attribute, path ? (const void *)value : &on, path ? strlen(value) : 1) == 0)
      fixed |= 1u << variables[i].attribute;
  }
}

/* Contexts take the process's attributes when they are created. Without memory a context uses those of the process. */
void sim_coredump_begin(struct sim_ctx *ctx) {
  start();
  ctx->coredump = malloc(sizeof *ctx->coredump);
  if (ctx->coredump)
    *ctx->coredump = of_process;
}

void sim_coredump_end(struct sim_ctx *ctx) {
  free(ctx->coredump);
  ctx->coredump = NULL;
}

/* ---- the API ----------------------------------------------------------------------------------------------------- */

/* What the arguments alone say: SUCCESS with *done if only the size was asked for. */
static CUresult check(int attribute, const void *value, size_t *size, bool *done) {
  *done = false;
  if (attribute < ON_EXCEPTION || attribute >= ATTRIBUTES || size == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (value == NULL) {
    *size = bytes_of((enum attribute)attribute);
    *done = true;
  }
  return CUDA_SUCCESS;
}

static CUresult of_all(int attribute, void *value, size_t *size, bool write) {
  bool done;
  CUresult result = check(attribute, value, size, &done);
  if (result || done)
    return result;
  sim_lock();
  start();
  result = write ? set(&of_process, (enum attribute)attribute, value, *size)
                 : get(&of_process, (enum attribute)attribute, value, size);
  sim_unlock();
  return result;
}

static CUresult of_context(int attribute, void *value, size_t *size, bool write) {
  struct sim_ctx *ctx;
  bool done;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = check(attribute, value, size, &done);
  if (result || done)
    return result;
  if (write && (attribute == USER_TRIGGER || attribute == PIPE))
    return CUDA_ERROR_NOT_SUPPORTED; /* the whole process has one pipe */
  sim_lock();
  struct sim_coredump *of = sim_ctx_owner(ctx)->coredump ? sim_ctx_owner(ctx)->coredump : &of_process;
  result = write ? set(of, (enum attribute)attribute, value, *size) : get(of, (enum attribute)attribute, value, size);
  sim_unlock();
  return result;
}

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attrib, void *value, size_t *size) {
  return of_context(attrib, value, size, false);
}
CUresult cuCoredumpSetAttribute(CUcoredumpSettings attrib, void *value, size_t *size) {
  return of_context(attrib, value, size, true);
}
/* These work before cuInit. */
CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size) {
  return of_all(attrib, value, size, false);
}
CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size) {
  return of_all(attrib, value, size, true);
}
