/* -q, as text or (-x) as XML: the same rows for both. */
#include <string.h>
#include <strings.h>

#include "sim/smi/smi.h"

struct row {
  unsigned depth;
  const char *label, *tag;
  const char *field;   /* NULL: a section */
  const char *display; /* of a section at depth 1: its name for -d; NULL: shown with all or none */
};

static const struct row rows[] = {
    {1, "Product Name", "product_name", "name", NULL},
    {1, "Display Mode", "display_mode", "display_mode", NULL},
    {1, "Display Active", "display_active", "display_active", NULL},
    {1, "Persistence Mode", "persistence_mode", "persistence_mode", NULL},
    {1, "Addressing Mode", "addressing_mode", "addressing_mode", NULL},
    {1, "MIG Mode", "mig_mode", NULL, NULL},
    {2, "Current", "current_mig", "mig.mode.current", NULL},
    {2, "Pending", "pending_mig", "mig.mode.pending", NULL},
    {1, "Accounting Mode", "accounting_mode", "accounting.mode", "ACCOUNTING"},
    {1, "Accounting Mode Buffer Size", "accounting_mode_buffer_size", "accounting.buffer_size", "ACCOUNTING"},
    {1, "Driver Model", "driver_model", NULL, NULL},
    {2, "Current", "current_dm", "driver_model.current", NULL},
    {2, "Pending", "pending_dm", "driver_model.pending", NULL},
    {1, "Serial Number", "serial", "serial", NULL},
    {1, "GPU UUID", "uuid", "uuid", NULL},
    {1, "Minor Number", "minor_number", ".minor", NULL},
    {1, "VBIOS Version", "vbios_version", "vbios_version", NULL},
    {1, "PCI", "pci", NULL, NULL},
    {2, "Bus", "pci_bus", "pci.bus", NULL},
    {2, "Device", "pci_device", "pci.device", NULL},
    {2, "Domain", "pci_domain", "pci.domain", NULL},
    {2, "Device Id", "pci_device_id", "pci.device_id", NULL},
    {2, "Bus Id", "pci_bus_id", "pci.bus_id", NULL},
    {2, "Sub System Id", "pci_sub_system_id", "pci.sub_device_id", NULL},
    {1, "Fan Speed", "fan_speed", "fan.speed", NULL},
    {1, "Performance State", "performance_state", "pstate", "PERFORMANCE"},
    {1, "FB Memory Usage", "fb_memory_usage", NULL, "MEMORY"},
    {2, "Total", "total", "memory.total", NULL},
    {2, "Reserved", "reserved", "memory.reserved", NULL},
    {2, "Used", "used", "memory.used", NULL},
    {2, "Free", "free", "memory.free", NULL},
    {1, "BAR1 Memory Usage", "bar1_memory_usage", NULL, "MEMORY"},
    {2, "Total", "total", ".bar1.total", NULL},
    {2, "Used", "used", ".bar1.used", NULL},
    {2, "Free", "free", ".bar1.free", NULL},
    {1, "Compute Mode", "compute_mode", "compute_mode", "COMPUTE"},
    {1, "Utilization", "utilization", NULL, "UTILIZATION"},
    {2, "GPU", "gpu_util", "utilization.gpu", NULL},
    {2, "Memory", "memory_util", "utilization.memory", NULL},
    {2, "Encoder", "encoder_util", "utilization.encoder", NULL},
    {2, "Decoder", "decoder_util", "utilization.decoder", NULL},
    {2, "JPEG", "jpeg_util", "utilization.jpeg", NULL},
    {2, "OFA", "ofa_util", "utilization.ofa", NULL},
    {1, "ECC Mode", "ecc_mode", NULL, "ECC"},
    {2, "Current", "current_ecc", "ecc.mode.current", NULL},
    {2, "Pending", "pending_ecc", "ecc.mode.pending", NULL},
    {1, "Temperature", "temperature", NULL, "TEMPERATURE"},
    {2, "GPU Current Temp", "gpu_temp", "temperature.gpu", NULL},
    {2, "Memory Current Temp", "memory_temp", "temperature.memory", NULL},
    {1, "GPU Power Readings", "gpu_power_readings", NULL, "POWER"},
    {2, "Average Power Draw", "average_power_draw", "power.draw.average", NULL},
    {2, "Instantaneous Power Draw", "instant_power_draw", "power.draw.instant", NULL},
    {2, "Current Power Limit", "current_power_limit", "enforced.power.limit", NULL},
    {2, "Requested Power Limit", "requested_power_limit", "power.limit", NULL},
    {2, "Default Power Limit", "default_power_limit", "power.default_limit", NULL},
    {2, "Min Power Limit", "min_power_limit", "power.min_limit", NULL},
    {2, "Max Power Limit", "max_power_limit", "power.max_limit", NULL},
    {1, "Clocks", "clocks", NULL, "CLOCK"},
    {2, "Graphics", "graphics_clock", "clocks.current.graphics", NULL},
    {2, "SM", "sm_clock", "clocks.current.sm", NULL},
    {2, "Memory", "mem_clock", "clocks.current.memory", NULL},
    {2, "Video", "video_clock", "clocks.current.video", NULL},
    {1, "Max Clocks", "max_clocks", NULL, "CLOCK"},
    {2, "Graphics", "graphics_clock", "clocks.max.graphics", NULL},
    {2, "SM", "sm_clock", "clocks.max.sm", NULL},
    {2, "Memory", "mem_clock", "clocks.max.memory", NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };

static bool listed(const char *list, const char *name) {
  for (size_t length; list && *list; list += length + (list[length] == ',')) {
    length = strcspn(list, ",");
    if (name && strlen(name) == length && strncasecmp(list, name, length) == 0)
      return true;
  }
  return false;
}

static void indent(FILE *out, unsigned depth, bool xml) {
  for (unsigned i = 0; i < depth; i++)
    fputs(xml ? "\t" : "    ", out);
}

static void line(FILE *out, unsigned depth, const char *label, const char *value) {
  indent(out, depth, false);
  if (value)
    fprintf(out, "%-*s: %s\n", (int)(55 - 4 * depth), label, value);
  else
    fprintf(out, "%s\n", label);
}

static void escaped(FILE *out, const char *text) {
  for (; *text; text++) {
    if (*text == '&' || *text == '<' || *text == '>')
      fputs(*text == '&' ? "&amp;" : *text == '<' ? "&lt;" : "&gt;", out);
    else
      fputc(*text, out);
  }
}

static void element(FILE *out, unsigned depth, const char *tag, const char *value) {
  indent(out, depth, true);
  fprintf(out, "<%s>", tag);
  escaped(out, value);
  fprintf(out, "</%s>\n", tag);
}

/* One row in either form; value NULL: the section begins. */
static void put(FILE *out, bool xml, unsigned depth, const char *label, const char *tag, const char *value) {
  if (!xml) {
    line(out, depth, label, value);
  } else if (value) {
    element(out, depth + 1, tag, value);
  } else {
    indent(out, depth + 1, true);
    fprintf(out, "<%s>\n", tag);
  }
}

static void end(FILE *out, bool xml, unsigned depth, const char *tag) {
  if (xml) {
    indent(out, depth + 1, true);
    fprintf(out, "</%s>\n", tag);
  }
}

static void put_rows(FILE *out, const struct smi_asked *asked, const struct smi_device *device) {
  const char *open = NULL;
  bool shown = true;
  for (unsigned i = 0; i < ROWS; i++) {
    const struct row *row = &rows[i];
    char text[SMI_TEXT];
    if (row->depth == 1) {
      if (open)
        end(out, asked->xml, 1, open);
      shown = asked->sections == NULL || listed(asked->sections, row->display);
      open = shown && row->field == NULL ? row->tag : NULL;
    }
    if (shown)
      put(out, asked->xml, row->depth, row->label, row->tag,
          row->field ? smi_text(row->field, device, true, text) : NULL);
  }
  if (open)
    end(out, asked->xml, 1, open);
}

static void put_processes(FILE *out, const struct smi_asked *asked, const struct smi_device *device) {
  static struct smi_process list[SMI_PROCESSES];
  if (asked->sections && !listed(asked->sections, "PIDS"))
    return;
  unsigned count = smi_processes(device, list);
  put(out, asked->xml, 1, "Processes", "processes", count || asked->xml ? NULL : "None");
  for (unsigned i = 0; i < count; i++) {
    char number[16], memory[32] = "N/A";
    snprintf(number, sizeof number, "%u", list[i].pid);
    if (list[i].bytes != SMI_NO_BYTES)
      snprintf(memory, sizeof memory, "%llu MiB", list[i].bytes >> 20);
    if (asked->xml)
      put(out, true, 2, NULL, "process_info", NULL);
    put(out, asked->xml, 2 + asked->xml, "GPU instance ID", "gpu_instance_id", "N/A");
    put(out, asked->xml, 2 + asked->xml, "Compute instance ID", "compute_instance_id", "N/A");
    put(out, asked->xml, 2 + asked->xml, "Process ID", "pid", number);
    put(out, asked->xml, 3, "Type", "type", list[i].type);
    put(out, asked->xml, 3, "Name", "process_name", list[i].name[0] ? list[i].name : "N/A");
    put(out, asked->xml, 3, "Used GPU Memory", "used_memory", memory);
    end(out, asked->xml, 2, "process_info");
  }
  end(out, asked->xml, 1, "processes");
}

void smi_log(FILE *out, const struct smi_asked *asked) {
  char now[SMI_TEXT], driver[SMI_TEXT], cuda[SMI_TEXT] = "N/A", number[16], bus[SMI_TEXT];
  int version = 0;
  bool xml = asked->xml;
  smi_now(now, "%a %b %e %H:%M:%S %Y");
  if (smi_nvml.nvmlSystemGetCudaDriverVersion_v2(&version) == NVML_SUCCESS)
    snprintf(cuda, sizeof cuda, "%d.%d", version / 1000, version % 1000 / 10);
  snprintf(number, sizeof number, "%u", asked->count);
  fputs(xml ? "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n"
            : "\n==============NVSMI LOG==============\n\n",
        out);
  put(out, xml, 0, "Timestamp", "timestamp", now);
  put(out, xml, 0, "Driver Version", "driver_version", smi_text("driver_version", &asked->device[0], false, driver));
  put(out, xml, 0, "CUDA Version", "cuda_version", cuda);
  if (!xml)
    fputc('\n', out);
  put(out, xml, 0, "Attached GPUs", "attached_gpus", number);
  for (unsigned i = 0; i < asked->count; i++) {
    smi_text("pci.bus_id", &asked->device[i], false, bus);
    fprintf(out, xml ? "\t<gpu id=\"%s\">\n" : "GPU %s\n", bus);
    put_rows(out, asked, &asked->device[i]);
    put_processes(out, asked, &asked->device[i]);
    fputs(xml ? "\t</gpu>\n" : "\n", out);
  }
  if (xml)
    fputs("</nvidia_smi_log>\n", out);
}
