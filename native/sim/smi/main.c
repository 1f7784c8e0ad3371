/* The command line. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "sim/smi/smi.h"

enum form { FORM_TABLE, FORM_LIST, FORM_LOG, FORM_DEVICES, FORM_PROCESSES, FORM_VERSION, FORM_FIELDS, FORM_HELP };

struct arguments {
  enum form form;
  const char *devices; /* -i; NULL: all */
  const char *format;  /* --format; NULL: none */
  const char *file;    /* -f; NULL: standard output */
  long every_ms;       /* -l, -lms; 0: once */
  struct smi_asked asked;
};

static const char help[] = "nvidia-smi for the simulated devices of gpushare: a part of what NVIDIA's program shows, "
                           "from the same library.\n\n"
                           "    nvidia-smi                      the devices and the processes on them\n"
                           "    -L, --list-gpus                 one line for each device\n"
                           "    -q, --query                     all properties\n"
                           "    -x, --xml-format                -q as XML\n"
                           "    -d, --display=TYPE[,TYPE]       only parts of -q: MEMORY, UTILIZATION, ECC, "
                           "TEMPERATURE, POWER, CLOCK, COMPUTE,\n"
                           "                                    PIDS, PERFORMANCE, ACCOUNTING\n"
                           "    --query-gpu=FIELD[,FIELD]       properties of each device; with --format\n"
                           "    --query-compute-apps=FIELD[,FIELD]\n"
                           "                                    properties of each process; with --format\n"
                           "    --format=csv[,noheader][,nounits]\n"
                           "    --help-query-gpu                the fields\n"
                           "    -i, --id=DEVICE[,DEVICE]        only these: index, UUID or bus id\n"
                           "    -l, --loop=SECONDS              again and again; -lms, --loop-ms=MS\n"
                           "    -f, --filename=FILE             into a file\n"
                           "    --version\n";

/* ---- arguments --------------------------------------------------------------------------------------------------- */

enum { QUERY_GPU = 256, QUERY_APPS, FORMAT, LOOP_MS, VERSION, HELP_FIELDS };
static const struct option options[] = {
    {"list-gpus", no_argument, NULL, 'L'},
    {"query", no_argument, NULL, 'q'},
    {"xml-format", no_argument, NULL, 'x'},
    {"display", required_argument, NULL, 'd'},
    {"query-gpu", required_argument, NULL, QUERY_GPU},
    {"query-compute-apps", required_argument, NULL, QUERY_APPS},
    {"format", required_argument, NULL, FORMAT},
    {"id", required_argument, NULL, 'i'},
    {"loop", required_argument, NULL, 'l'},
    {"loop-ms", required_argument, NULL, LOOP_MS},
    {"filename", required_argument, NULL, 'f'},
    {"version", no_argument, NULL, VERSION},
    {"help-query-gpu", no_argument, NULL, HELP_FIELDS},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static bool positive(const char *text, long factor, long *out) {
  char *end;
  long value = strtol(text, &end, 10);
  *out = value * factor;
  return *text && *end == '\0' && value > 0 && value <= 1000000;
}

static bool take(struct arguments *into, int option, const char *value) {
  switch (option) {
    case 'L': into->form = FORM_LIST; return true;
    case 'q': into->form = FORM_LOG; return true;
    case 'x': into->asked.xml = true; return true;
    case 'd': into->asked.sections = value; return true;
    case 'i': into->devices = value; return true;
    case 'f': into->file = value; return true;
    case 'h': into->form = FORM_HELP; return true;
    case 'l': return positive(value, 1000, &into->every_ms);
    case LOOP_MS: return positive(value, 1, &into->every_ms);
    case FORMAT: into->format = value; return true;
    case VERSION: into->form = FORM_VERSION; return true;
    case HELP_FIELDS: into->form = FORM_FIELDS; return true;
    case QUERY_GPU:
    case QUERY_APPS:
      into->form = option == QUERY_GPU ? FORM_DEVICES : FORM_PROCESSES;
      into->asked.fields = value;
      return true;
    default: return false;
  }
}

/* -lms is one option, not -l with a value. */
static void spell_out(int count, char **words) {
  for (int i = 1; i < count; i++)
    if (strcmp(words[i], "-lms") == 0)
      words[i] = (char *)(uintptr_t)"--loop-ms";
}

static bool format_read(struct arguments *into) {
  const char *at = into->format;
  into->asked.header = into->asked.units = true;
  if (into->form != FORM_DEVICES && into->form != FORM_PROCESSES)
    return at == NULL;
  if (at == NULL)
    return false;
  for (size_t length; *at; at += length + (at[length] == ',')) {
    at += *at == ' ';
    length = strcspn(at, ",");
    if (length == 8 && memcmp(at, "noheader", 8) == 0)
      into->asked.header = false;
    else if (length == 7 && memcmp(at, "nounits", 7) == 0)
      into->asked.units = false;
    else if (length != 3 || memcmp(at, "csv", 3) != 0)
      return false;
  }
  return true;
}

static bool read(int count, char **words, struct arguments *into) {
  *into = (struct arguments){.form = FORM_TABLE};
  opterr = 0;
  spell_out(count, words);
  for (int option; (option = getopt_long(count, words, "Lqxd:i:l:f:h", options, NULL)) != -1;) {
    if (take(into, option, optarg))
      continue;
    const char *word = words[optind - 1];
    printf(option == '?' ? "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"
                         : "Option %s has an invalid value. Please run 'nvidia-smi -h' for help.\n\n",
           word);
    return false;
  }
  bool known = optind == count && format_read(into) &&
               (into->form == FORM_LOG || (!into->asked.xml && into->asked.sections == NULL));
  if (!known)
    printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
  return known;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static bool same_bus(const char *text, const char *bus) {
  unsigned a[3] = {0}, b[3] = {0};
  if (sscanf(bus, "%x:%x:%x", &b[0], &b[1], &b[2]) != 3)
    return false;
  if (sscanf(text, "%x:%x:%x", &a[0], &a[1], &a[2]) != 3) {
    a[0] = 0;
    if (sscanf(text, "%x:%x", &a[1], &a[2]) != 2)
      return false;
  }
  return memcmp(a, b, sizeof a) == 0;
}

static bool is(const struct smi_device *device, const char *word) {
  char index[16], text[SMI_TEXT];
  snprintf(index, sizeof index, "%u", device->index);
  if (strcmp(index, word) == 0 || strcasecmp(smi_text("uuid", device, false, text), word) == 0)
    return true;
  return strchr(word, ':') && same_bus(word, smi_text("pci.bus_id", device, false, text));
}

static bool wanted(const struct smi_device *device, const char *list) {
  for (size_t length; list && *list; list += length + (list[length] == ',')) {
    char word[SMI_TEXT];
    length = strcspn(list, ",");
    snprintf(word, sizeof word, "%.*s", (int)length, list);
    if (is(device, word))
      return true;
  }
  return false;
}

static enum smi_status find(struct arguments *arguments) {
  unsigned count = 0;
  struct smi_asked *asked = &arguments->asked;
  nvmlReturn_t result = smi_nvml.nvmlDeviceGetCount_v2(&count);
  asked->count = 0;
  for (unsigned i = 0; i < count && asked->count < SMI_DEVICES && result == NVML_SUCCESS; i++) {
    struct smi_device *device = &asked->device[asked->count];
    device->index = i;
    result = smi_nvml.nvmlDeviceGetHandleByIndex_v2(i, &device->handle);
    if (result == NVML_SUCCESS && (arguments->devices == NULL || wanted(device, arguments->devices)))
      asked->count++;
  }
  if (result == NVML_SUCCESS && asked->count == 0)
    result = NVML_ERROR_NOT_FOUND;
  return result == NVML_SUCCESS ? SMI_OK : smi_failed(result);
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static void versions(FILE *out) {
  char driver[SMI_TEXT] = "N/A", library[SMI_TEXT] = "N/A";
  int cuda = 0;
  smi_nvml.nvmlSystemGetDriverVersion(driver, sizeof driver);
  smi_nvml.nvmlSystemGetNVMLVersion(library, sizeof library);
  smi_nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
  const char *number = strchr(library, '.'); /* the first number is CUDA's */
  fprintf(out,
          "NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n",
          driver, number ? number + 1 : library, driver, cuda / 1000, cuda % 1000 / 10);
}

static void fields(FILE *out) {
  fputs("List of valid properties to query for the switch \"--query-gpu\":\n\n", out);
  for (const struct smi_field *field = smi_fields; field->name; field++)
    if (*field->name != '.')
      fprintf(out, field->other ? "\"%s\" or \"%s\"\n" : "\"%s\"\n", field->name, field->other);
}

static enum smi_status show(FILE *out, struct arguments *arguments) {
  bool good = true;
  if (arguments->form == FORM_VERSION) {
    versions(out);
    return SMI_OK;
  }
  enum smi_status status = find(arguments);
  if (status)
    return status;
  switch (arguments->form) {
    case FORM_LIST: smi_list(out, &arguments->asked); break;
    case FORM_LOG: smi_log(out, &arguments->asked); break;
    case FORM_DEVICES: good = smi_query_devices(out, &arguments->asked); break;
    case FORM_PROCESSES: good = smi_query_processes(out, &arguments->asked); break;
    default: smi_table(out, &arguments->asked);
  }
  return good ? SMI_OK : SMI_USAGE;
}

static enum smi_status run(FILE *out, struct arguments *arguments) {
  enum smi_status status = smi_start();
  while (status == SMI_OK) {
    status = show(out, arguments);
    if (arguments->every_ms == 0 || status || fflush(out) != 0)
      break;
    nanosleep(&(struct timespec){arguments->every_ms / 1000, arguments->every_ms % 1000 * 1000000}, NULL);
    arguments->asked.header = false;
  }
  return status;
}

int main(int count, char **words) {
  struct arguments arguments;
  if (!read(count, words, &arguments))
    return SMI_USAGE;
  if (arguments.form == FORM_HELP || arguments.form == FORM_FIELDS) {
    if (arguments.form == FORM_HELP)
      fputs(help, stdout);
    else
      fields(stdout);
    return SMI_OK;
  }
  FILE *out = arguments.file ? fopen(arguments.file, "we") : stdout;
  if (out == NULL) {
    printf("Failed to open file %s\n", arguments.file);
    return SMI_USAGE;
  }
  enum smi_status status = run(out, &arguments);
  return fclose(out) == 0 ? (int)status : SMI_OTHER;
}
