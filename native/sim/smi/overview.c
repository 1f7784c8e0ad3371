/* What `nvidia-smi` prints: the devices and their processes. And -L. */
#include <string.h>

#include "sim/smi/smi.h"

/* The widths of the three columns of devices: 41, 24, 22; with their borders those of the processes: 89. */
#define LINE41 "-----------------------------------------"
#define LINE24 "------------------------"
#define LINE22 "----------------------"
#define EDGE "+" LINE41 "-" LINE24 "-" LINE22 "+\n"
#define COLUMNS "+" LINE41 "+" LINE24 "+" LINE22 "+\n"

static void head(FILE *out, const struct smi_asked *asked) {
  char now[SMI_TEXT], driver[SMI_TEXT];
  int cuda = 0;
  char version[SMI_TEXT] = "N/A";
  const char *release = smi_text("driver_version", &asked->device[0], false, driver);
  if (smi_nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda) == NVML_SUCCESS)
    snprintf(version, sizeof version, "%d.%d", cuda / 1000, cuda % 1000 / 10);
  smi_now(now, "%a %b %e %H:%M:%S %Y");
  fprintf(out, "%-31s\n" EDGE, now);
  fprintf(out, "| NVIDIA-SMI %-23sDriver Version: %-15sCUDA Version: %-9s|\n" COLUMNS, release, release, version);
  fputs("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
        "|                                         |                        |               MIG M. |\n"
        "|=========================================+========================+======================|\n",
        out);
}

/* A value with a unit and no space between them; N/A without one. */
static const char *with(char text[SMI_TEXT], const char *field, const char *unit, const struct smi_device *device) {
  smi_text(field, device, false, text);
  if (strcmp(text, "N/A") != 0) {
    char *point = strchr(text, '.'); /* watts are shown without decimals */
    snprintf(point ? point : text + strlen(text), 8, "%s", unit);
  }
  return text;
}

static const char *on_off(char text[SMI_TEXT], const char *field, const struct smi_device *device) {
  smi_text(field, device, false, text);
  return strcmp(text, "Enabled") == 0 ? "On" : strcmp(text, "Disabled") == 0 ? "Off" : text;
}

static const char *short_mode(const char *mode) {
  if (strcmp(mode, "Exclusive_Process") == 0)
    return "E. Process";
  return strcmp(mode, "Exclusive_Thread") == 0 ? "E. Thread" : mode;
}

static void device_rows(FILE *out, const struct smi_device *device) {
  char a[SMI_TEXT], b[SMI_TEXT], c[SMI_TEXT], d[SMI_TEXT], power[2 * SMI_TEXT + 8], memory[2 * SMI_TEXT + 8];
  fprintf(out, "|%4u  %-30.30s %-3s | %18s %-3s | %20s |\n", device->index, smi_text("name", device, false, a),
          on_off(b, "persistence_mode", device), smi_text("pci.bus_id", device, false, c),
          on_off(d, "display_active", device), smi_text("ecc.errors.uncorrected.volatile.total", device, false, power));
  snprintf(power, sizeof power, "%s / %5s", with(a, "power.draw", "W", device),
           with(b, "enforced.power.limit", "W", device));
  snprintf(memory, sizeof memory, "%s / %9s", with(c, "memory.used", "MiB", device),
           with(d, "memory.total", "MiB", device));
  fprintf(out, "|%4s  %4s    %-4s%22s |%23s |", with(a, "fan.speed", "%", device),
          with(b, "temperature.gpu", "C", device), smi_text("pstate", device, false, c), power, memory);
  fprintf(out, "%8s %12s |\n", with(a, "utilization.gpu", "%", device),
          short_mode(smi_text("compute_mode", device, false, b)));
  fprintf(out, "|%41s|%24s|%21s |\n" COLUMNS, "", "", smi_text("mig.mode.current", device, false, a));
}

static unsigned process_rows(FILE *out, const struct smi_device *device) {
  static struct smi_process list[SMI_PROCESSES];
  unsigned count = smi_processes(device, list);
  for (unsigned i = 0; i < count; i++) {
    char bytes[32] = "N/A";
    const char *name = list[i].name[0] ? list[i].name : "N/A";
    size_t length = strlen(name);
    if (list[i].bytes != SMI_NO_BYTES)
      snprintf(bytes, sizeof bytes, "%lluMiB", list[i].bytes >> 20);
    /* of a long path the end is shown */
    fprintf(out, "|%5u   N/A  N/A%16u%7s   %s%-*s%11s |\n", device->index, list[i].pid, list[i].type,
            length > 35 ? "..." : "", length > 35 ? 32 : 35, length > 35 ? name + length - 32 : name, bytes);
  }
  return count;
}

void smi_table(FILE *out, const struct smi_asked *asked) {
  unsigned processes = 0;
  head(out, asked);
  for (unsigned i = 0; i < asked->count; i++)
    device_rows(out, &asked->device[i]);
  fputs("\n" EDGE "| Processes:                                                                              |\n"
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
        "|        ID   ID                                                               Usage      |\n"
        "|=========================================================================================|\n",
        out);
  for (unsigned i = 0; i < asked->count; i++)
    processes += process_rows(out, &asked->device[i]);
  if (processes == 0)
    fprintf(out, "|%-89s|\n", "  No running processes found");
  fputs(EDGE, out);
}

void smi_list(FILE *out, const struct smi_asked *asked) {
  for (unsigned i = 0; i < asked->count; i++) {
    char name[SMI_TEXT], uuid[SMI_TEXT];
    const struct smi_device *device = &asked->device[i];
    fprintf(out, "GPU %u: %s (UUID: %s)\n", device->index, smi_text("name", device, false, name),
            smi_text("uuid", device, false, uuid));
  }
}
