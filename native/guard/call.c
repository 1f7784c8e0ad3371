#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard/call.h"

enum {
  MAP_CREATE = 0,
  MAP_LOOKUP = 1,
  MAP_UPDATE = 2,
  MAP_DELETE = 3,
  MAP_NEXT_KEY = 4,
  PROG_LOAD = 5,
  PROG_ATTACH = 8,
  PROG_DETACH = 9,
  PROG_TEST_RUN = 10,
  PROG_BY_ID = 13,
  INFO_BY_FD = 15,
  PROG_QUERY = 16,
  RAW_TRACEPOINT_OPEN = 17,
  BTF_LOAD = 18,
  LINK_CREATE = 28,
  ITER_CREATE = 33,
};

#define LOG_BYTES (256 << 10)
#define MOST_FUNCTIONS 8
#define CGROUP_DEVICE 6 /* BPF_CGROUP_DEVICE */
#define ALLOW_MULTI 2   /* BPF_F_ALLOW_MULTI: beside other programs */
#define INFO_NAME 64    /* offset of the name in struct bpf_prog_info */

/* Long enough for all calls here. A kernel whose union is shorter accepts it if the rest is 0. */
union attribute {
  struct {
    uint32_t type, key, value, entries, flags, inner, node;
    char name[16];
  } map;
  struct {
    uint32_t map, unused;
    uint64_t key, value, flags;
  } element;
  struct {
    uint32_t type, words;
    uint64_t code, license;
    uint32_t log_level, log_size;
    uint64_t log;
    uint32_t version, flags;
    char name[16];
    uint32_t interface, attach;
    uint32_t btf, function_size;
    uint64_t functions;
    uint32_t nfunctions, line_size;
    uint64_t lines;
    uint32_t nlines, attach_to;
  } program;
  struct {
    uint64_t name;
    uint32_t program;
  } tracepoint;
  struct {
    uint64_t data, log;
    uint32_t size, log_size, log_level;
  } btf;
  struct {
    uint32_t program, target, type, flags;
  } link;
  struct {
    uint32_t link, flags;
  } iterator;
  struct {
    uint32_t program, answer, in_size, out_size;
    uint64_t in, out;
    uint32_t repeat, took, context_in_size, context_out_size;
    uint64_t context_in, context_out;
  } run;
  struct {
    uint32_t target, program, type, flags;
  } attach;
  struct {
    uint32_t target, type, flags, attached;
    uint64_t ids;
    uint32_t count;
  } query;
  struct {
    uint32_t fd, size;
    uint64_t at;
  } info;
  uint32_t id;
  char bytes[144];
};

static uint64_t address(const void *at) { return (uint64_t)(uintptr_t)at; }

static int call(int command, union attribute *attribute) {
  long found = syscall(SYS_bpf, command, attribute, sizeof *attribute);
  return found < 0 ? -errno : (int)found;
}

int bpf_map_new(const char *name, uint32_t type, uint32_t key, uint32_t value, uint32_t entries, uint32_t flags) {
  union attribute with = {.map = {.type = type, .key = key, .value = value, .entries = entries, .flags = flags}};
  strncpy(with.map.name, name, sizeof with.map.name - 1);
  return call(MAP_CREATE, &with);
}

static int element(int command, int map, const void *key, void *value, uint64_t flags) {
  union attribute with = {
      .element = {.map = (uint32_t)map, .key = address(key), .value = address(value), .flags = flags}};
  return call(command, &with);
}

int bpf_map_get(int map, const void *key, void *value) { return element(MAP_LOOKUP, map, key, value, 0); }

int bpf_map_set(int map, const void *key, const void *value, uint64_t flags) {
  return element(MAP_UPDATE, map, key, (void *)value, flags);
}

int bpf_map_drop(int map, const void *key) { return element(MAP_DELETE, map, key, NULL, 0); }

int bpf_map_next(int map, const void *key, void *next) { return element(MAP_NEXT_KEY, map, key, next, 0); }

/* Loads types for a program whose functions all have the same prototype: the minimum that the verifier requires of a
 * program with callbacks. */
static int load_types(void) {
  static const struct {
    uint16_t magic;
    uint8_t version, flags;
    uint32_t header, types_at, types_size, strings_at, strings_size;
    uint32_t number[4], prototype[3], function[3];
    char strings[8];
  } types = {
      .magic = 0xeb9f,
      .version = 1,
      .header = 24,
      .types_size = 40,
      .strings_at = 40,
      .strings_size = 7,
      .number = {1, 1u << 24, 4, 1u << 24 | 32}, /* int, signed, 32 bits */
      .prototype = {0, 13u << 24, 1},            /* returns it */
      .function = {5, 12u << 24, 2},             /* static, of that prototype */
      .strings = "\0int\0f",
  };
  union attribute with = {.btf = {.data = address(&types), .size = 24 + 40 + 7}};
  return call(BTF_LOAD, &with);
}

static const char *last_line(char *log) {
  size_t length = strlen(log);
  while (length && log[length - 1] == '\n')
    log[--length] = 0;
  /* The very last line has only the verifier's statistics. */
  char *end = strrchr(log, '\n');
  if (end && !strncmp(end, "\nprocessed ", 11))
    *end = 0;
  end = strrchr(log, '\n');
  return end ? end + 1 : log;
}

/* A copy of the instructions with the maps' descriptors in place; NULL: out of memory. */
static uint64_t *with_maps(const struct program_text *text, const int *maps) {
  const uint64_t from_map = 1 << 12; /* BPF_PSEUDO_MAP_FD in the instruction's source register */
  uint64_t *code = malloc(text->words * sizeof *code);
  if (!code)
    return NULL;
  memcpy(code, text->code, text->words * sizeof *code);
  for (uint32_t i = 0; i < text->nuses; i++) {
    struct map_use use = text->uses[i];
    code[use.at] = (code[use.at] & 0xffffffff) | from_map | (uint64_t)maps[use.map] << 32;
  }
  return code;
}

static int load(const struct program *program, const uint64_t *code, struct gs_err *err) {
  const struct program_text *text = program->text;
  struct {
    uint32_t at, type;
  } functions[MOST_FUNCTIONS];
  union attribute with = {.program = {.type = program->type,
                                      .words = text->words,
                                      .code = address(code),
                                      .license = address("GPL"),
                                      .attach = program->attach,
                                      .attach_to = program->attach_to}};
  strncpy(with.program.name, program->name, sizeof with.program.name - 1);
  int types = -1;
  if (text->nfunctions > MOST_FUNCTIONS)
    return gs_fail(err, -E2BIG, "%s has too many functions", program->name);
  if (text->nfunctions > 1) {
    types = load_types();
    if (types < 0)
      return gs_fail(err, types, "the kernel refused the types of a BPF program: %s", strerror(-types));
    for (uint32_t i = 0; i < text->nfunctions; i++)
      functions[i].at = text->functions[i], functions[i].type = 3;
    with.program.btf = (uint32_t)types;
    with.program.functions = address(functions);
    with.program.function_size = sizeof functions[0];
    with.program.nfunctions = text->nfunctions;
  }
  int found = call(PROG_LOAD, &with);
  if (found < 0 && found != -EPERM) {
    /* Loads it again with a log, to learn the reason. */
    char *log = calloc(1, LOG_BYTES);
    if (log) {
      with.program.log = address(log);
      with.program.log_size = LOG_BYTES;
      with.program.log_level = 1;
      int again = call(PROG_LOAD, &with);
      if (again >= 0)
        found = again;
    }
    if (found < 0)
      gs_fail(err, found, "the kernel refused the BPF program %s: %s: %.90s", program->name, strerror(-found),
              log ? last_line(log) : "");
    free(log);
  } else if (found < 0) {
    gs_fail(err, found, "the kernel refused the BPF program %s: %s: it needs CAP_BPF and %s, or root", program->name,
            strerror(-found), program->type == PROGRAM_CGROUP_DEVICE ? "CAP_NET_ADMIN" : "CAP_PERFMON");
  }
  if (types >= 0)
    close(types);
  return found;
}

int bpf_program_load(const struct program *program, const int *maps, struct gs_err *err) {
  uint64_t *code = with_maps(program->text, maps);
  int found = code ? load(program, code, err) : gs_fail(err, -ENOMEM, "out of memory");
  free(code);
  return found;
}

int bpf_program_open(uint32_t id, char name[16]) {
  char info[INFO_NAME + 16] = {0};
  int program = call(PROG_BY_ID, &(union attribute){.id = id});
  if (program < 0)
    return program;
  union attribute with = {.info = {.fd = (uint32_t)program, .size = sizeof info, .at = address(info)}};
  int status = call(INFO_BY_FD, &with);
  if (status < 0) {
    close(program);
    return status;
  }
  memcpy(name, info + INFO_NAME, 16);
  return program;
}

static int change(int command, int cgroup, int program, uint32_t flags) {
  union attribute with = {
      .attach = {.target = (uint32_t)cgroup, .program = (uint32_t)program, .type = CGROUP_DEVICE, .flags = flags}};
  return call(command, &with);
}

int bpf_cgroup_attach(int cgroup, int program) { return change(PROG_ATTACH, cgroup, program, ALLOW_MULTI); }

int bpf_cgroup_detach(int cgroup, int program) { return change(PROG_DETACH, cgroup, program, 0); }

int bpf_cgroup_programs(int cgroup, uint32_t *ids, uint32_t count) {
  union attribute with = {
      .query = {.target = (uint32_t)cgroup, .type = CGROUP_DEVICE, .ids = address(ids), .count = count}};
  int status = call(PROG_QUERY, &with);
  return status < 0 ? status : (int)with.query.count;
}

int bpf_tracepoint_open(const char *name, int program) {
  union attribute with = {.tracepoint = {.name = address(name), .program = (uint32_t)program}};
  return call(RAW_TRACEPOINT_OPEN, &with);
}

int bpf_iterator_open(int program) {
  union attribute with = {.link = {.program = (uint32_t)program, .type = ATTACH_ITERATOR}};
  int link = call(LINK_CREATE, &with);
  if (link < 0)
    return link;
  union attribute of = {.iterator = {.link = (uint32_t)link}};
  int found = call(ITER_CREATE, &of);
  close(link);
  return found;
}

int bpf_run(int program) {
  uint64_t arguments[2] = {0, 0};
  union attribute with = {
      .run = {.program = (uint32_t)program, .context_in_size = sizeof arguments, .context_in = address(arguments)}};
  return call(PROG_TEST_RUN, &with);
}
