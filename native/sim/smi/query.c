/* --query-gpu and --query-compute-apps, as comma-separated values. */
#include <string.h>

#include "sim/smi/smi.h"

enum { COLUMNS_MAX = 128 };

/* A column of processes. */
struct column {
  const char *name, *other, *unit;
  void (*get)(const struct smi_process *process, char text[SMI_TEXT]); /* NULL: the device's field of this name */
};

static void pid(const struct smi_process *process, char text[SMI_TEXT]) {
  snprintf(text, SMI_TEXT, "%u", process->pid);
}

static void name(const struct smi_process *process, char text[SMI_TEXT]) {
  snprintf(text, SMI_TEXT, "%s", process->name[0] ? process->name : "[Not Found]");
}

static void bytes(const struct smi_process *process, char text[SMI_TEXT]) {
  if (process->bytes == SMI_NO_BYTES)
    snprintf(text, SMI_TEXT, "[N/A]");
  else
    snprintf(text, SMI_TEXT, "%llu", process->bytes >> 20);
}

static const struct column columns[] = {
    {"timestamp", NULL, "", NULL},      {"gpu_name", NULL, "", NULL},
    {"gpu_bus_id", NULL, "", NULL},     {"gpu_serial", NULL, "", NULL},
    {"gpu_uuid", NULL, "", NULL},       {"pid", NULL, "", pid},
    {"process_name", "name", "", name}, {"used_gpu_memory", "used_memory", "MiB", bytes},
};

static const struct column *column(const char *word, size_t length) {
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
    if ((strlen(columns[i].name) == length && memcmp(columns[i].name, word, length) == 0) ||
        (columns[i].other && strlen(columns[i].other) == length && memcmp(columns[i].other, word, length) == 0))
      return &columns[i];
  return NULL;
}

static const struct smi_field *field(const char *word, size_t length) {
  return *word == '.' ? NULL : smi_field(word, length); /* those names are not for users */
}

/* Splits the list of fields. Each word is given to `know`; false, with a message, at the first that it refuses. */
struct words {
  const char *at[COLUMNS_MAX];
  size_t length[COLUMNS_MAX];
  unsigned count;
};

static bool split(const char *list, bool (*know)(const char *, size_t), struct words *out) {
  out->count = 0;
  for (const char *at = list; *at && out->count < COLUMNS_MAX;) {
    at += strspn(at, " ");
    size_t length = strcspn(at, ","), trimmed = length;
    while (trimmed > 0 && at[trimmed - 1] == ' ')
      trimmed--;
    if (!know(at, trimmed)) {
      printf("Field \"%.*s\" is not a valid field to query.\n\n", (int)trimmed, at);
      return false;
    }
    out->at[out->count] = at;
    out->length[out->count++] = trimmed;
    at += length + (at[length] == ',');
  }
  return out->count > 0;
}

static bool knows_field(const char *word, size_t length) { return field(word, length) != NULL; }
static bool knows_column(const char *word, size_t length) { return column(word, length) != NULL; }

static void put(FILE *out, unsigned i, const char *text, const char *unit) {
  fprintf(out, "%s%s%s%s", i ? ", " : "", text, *unit ? " " : "", unit);
}

/* The names as the user wrote them. */
static void head(FILE *out, const struct smi_asked *asked, const struct words *words, bool of_processes) {
  for (unsigned i = 0; asked->header && i < words->count; i++) {
    const char *unit =
        of_processes ? column(words->at[i], words->length[i])->unit : field(words->at[i], words->length[i])->unit;
    fprintf(out, "%s%.*s", i ? ", " : "", (int)words->length[i], words->at[i]);
    if (*unit)
      fprintf(out, " [%s]", unit);
  }
  if (asked->header)
    fputc('\n', out);
}

bool smi_query_devices(FILE *out, const struct smi_asked *asked) {
  struct words words;
  if (!split(asked->fields, knows_field, &words))
    return false;
  head(out, asked, &words, false);
  for (unsigned i = 0; i < asked->count; i++) {
    for (unsigned j = 0; j < words.count; j++) {
      char text[SMI_TEXT];
      smi_value(field(words.at[j], words.length[j]), &asked->device[i], asked->units, "[N/A]", text);
      put(out, j, text, "");
    }
    fputc('\n', out);
  }
  return true;
}

static void row(FILE *out, const struct smi_asked *asked, const struct words *words, const struct smi_device *device,
                const struct smi_process *process) {
  for (unsigned j = 0; j < words->count; j++) {
    const struct column *each = column(words->at[j], words->length[j]);
    char text[SMI_TEXT];
    if (each->get)
      each->get(process, text);
    else
      smi_value(smi_field(each->name, strlen(each->name)), device, false, "[N/A]", text);
    put(out, j, text, asked->units && *text != '[' ? each->unit : "");
  }
  fputc('\n', out);
}

bool smi_query_processes(FILE *out, const struct smi_asked *asked) {
  static struct smi_process list[SMI_PROCESSES];
  struct words words;
  if (!split(asked->fields, knows_column, &words))
    return false;
  head(out, asked, &words, true);
  for (unsigned i = 0; i < asked->count; i++) {
    unsigned count = smi_processes(&asked->device[i], list);
    for (unsigned j = 0; j < count; j++)
      if (list[j].type[0] == 'C')
        row(out, asked, &words, &asked->device[i], &list[j]);
  }
  return true;
}
