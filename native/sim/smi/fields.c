/* The properties of a device. */
#include <string.h>
#include <time.h>

#include "sim/smi/smi.h"

#define PROPERTY(name) static bool name(const struct smi_device *device, char text[SMI_TEXT])

static bool put(char text[SMI_TEXT], nvmlReturn_t result, const char *format, unsigned long long value) {
  if (result != NVML_SUCCESS)
    return false;
  snprintf(text, SMI_TEXT, format, value);
  return true;
}

static bool copy(char text[SMI_TEXT], nvmlReturn_t result, const char *value) {
  if (result != NVML_SUCCESS)
    return false;
  snprintf(text, SMI_TEXT, "%s", value);
  return true;
}

void smi_now(char text[SMI_TEXT], const char *format) {
  time_t now = time(NULL);
  struct tm local;
  text[0] = '\0';
  if (localtime_r(&now, &local))
    strftime(text, SMI_TEXT, format, &local);
}

/* ---- the node ---------------------------------------------------------------------------------------------------- */

PROPERTY(timestamp) {
  struct timespec now;
  char seconds[SMI_TEXT];
  (void)device;
  clock_gettime(CLOCK_REALTIME, &now);
  smi_now(seconds, "%Y/%m/%d %H:%M:%S");
  snprintf(text, SMI_TEXT, "%.60s.%03ld", seconds, now.tv_nsec / 1000000);
  return true;
}

PROPERTY(driver_version) {
  (void)device;
  return smi_nvml.nvmlSystemGetDriverVersion(text, SMI_TEXT) == NVML_SUCCESS;
}

PROPERTY(count) {
  unsigned number = 0;
  (void)device;
  nvmlReturn_t result = smi_nvml.nvmlDeviceGetCount_v2(&number);
  return put(text, result, "%llu", number);
}

PROPERTY(number) { return put(text, NVML_SUCCESS, "%llu", device->index); }

/* ---- what NVML gives as text or as one number -------------------------------------------------------------------- */

#define TEXT(name, call) \
  PROPERTY(name) { return smi_nvml.call(device->handle, text, SMI_TEXT) == NVML_SUCCESS; }
TEXT(model, nvmlDeviceGetName)
TEXT(uuid, nvmlDeviceGetUUID)
TEXT(serial, nvmlDeviceGetSerial)
TEXT(vbios, nvmlDeviceGetVbiosVersion)
TEXT(inforom, nvmlDeviceGetInforomImageVersion)

#define NUMBER(name, format, call, ...) \
  PROPERTY(name) { \
    unsigned value = 0; \
    nvmlReturn_t result = smi_nvml.call(device->handle, ##__VA_ARGS__, &value); \
    return put(text, result, format, value); \
  }
NUMBER(minor_number, "%llu", nvmlDeviceGetMinorNumber)
NUMBER(buffer_size, "%llu", nvmlDeviceGetAccountingBufferSize)
NUMBER(fan, "%llu", nvmlDeviceGetFanSpeed)
NUMBER(state, "P%llu", nvmlDeviceGetPerformanceState)
NUMBER(temperature, "%llu", nvmlDeviceGetTemperature, 0)
NUMBER(link_generation, "%llu", nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(link_generation_max, "%llu", nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(link_width, "%llu", nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(link_width_max, "%llu", nvmlDeviceGetMaxPcieLinkWidth)

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };
NUMBER(clock_graphics, "%llu", nvmlDeviceGetClockInfo, CLOCK_GRAPHICS)
NUMBER(clock_sm, "%llu", nvmlDeviceGetClockInfo, CLOCK_SM)
NUMBER(clock_memory, "%llu", nvmlDeviceGetClockInfo, CLOCK_MEMORY)
NUMBER(clock_video, "%llu", nvmlDeviceGetClockInfo, CLOCK_VIDEO)
NUMBER(clock_graphics_max, "%llu", nvmlDeviceGetMaxClockInfo, CLOCK_GRAPHICS)
NUMBER(clock_sm_max, "%llu", nvmlDeviceGetMaxClockInfo, CLOCK_SM)
NUMBER(clock_memory_max, "%llu", nvmlDeviceGetMaxClockInfo, CLOCK_MEMORY)

#define MODE(name, call, ...) \
  PROPERTY(name) { \
    static const char *const words[] = {__VA_ARGS__}; \
    unsigned value = 0; \
    nvmlReturn_t result = smi_nvml.call(device->handle, &value); \
    return value < sizeof words / sizeof *words && copy(text, result, words[value]); \
  }
MODE(persistence, nvmlDeviceGetPersistenceMode, "Disabled", "Enabled")
MODE(display, nvmlDeviceGetDisplayMode, "Disabled", "Enabled")
MODE(display_active, nvmlDeviceGetDisplayActive, "Disabled", "Enabled")
MODE(accounting, nvmlDeviceGetAccountingMode, "Disabled", "Enabled")
MODE(compute_mode, nvmlDeviceGetComputeMode, "Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")

#define TWO_MODES(name, call, which) \
  PROPERTY(name) { \
    unsigned value[2] = {0}; \
    nvmlReturn_t result = smi_nvml.call(device->handle, &value[0], &value[1]); \
    return copy(text, result, value[which] ? "Enabled" : "Disabled"); \
  }
TWO_MODES(mig, nvmlDeviceGetMigMode, 0)
TWO_MODES(mig_pending, nvmlDeviceGetMigMode, 1)
TWO_MODES(ecc, nvmlDeviceGetEccMode, 0)
TWO_MODES(ecc_pending, nvmlDeviceGetEccMode, 1)

PROPERTY(ecc_uncorrected) {
  enum { UNCORRECTED = 1, VOLATILE = 0 };
  unsigned long long errors = 0;
  nvmlReturn_t result = smi_nvml.nvmlDeviceGetTotalEccErrors(device->handle, UNCORRECTED, VOLATILE, &errors);
  return put(text, result, "%llu", errors);
}

/* ---- power ------------------------------------------------------------------------------------------------------- */

static bool watts(char text[SMI_TEXT], nvmlReturn_t result, unsigned milliwatts) {
  if (result == NVML_SUCCESS)
    snprintf(text, SMI_TEXT, "%.2f", milliwatts / 1000.0);
  return result == NVML_SUCCESS;
}

#define WATTS(name, call) \
  PROPERTY(name) { \
    unsigned value = 0; \
    nvmlReturn_t result = smi_nvml.call(device->handle, &value); \
    return watts(text, result, value); \
  }
WATTS(power, nvmlDeviceGetPowerUsage)
WATTS(power_limit, nvmlDeviceGetPowerManagementLimit)
WATTS(power_enforced, nvmlDeviceGetEnforcedPowerLimit)
WATTS(power_default, nvmlDeviceGetPowerManagementDefaultLimit)

static bool constraint(const struct smi_device *device, char text[SMI_TEXT], bool highest) {
  unsigned value[2] = {0};
  nvmlReturn_t result = smi_nvml.nvmlDeviceGetPowerManagementLimitConstraints(device->handle, &value[0], &value[1]);
  return watts(text, result, value[highest]);
}
PROPERTY(power_lowest) { return constraint(device, text, false); }
PROPERTY(power_highest) { return constraint(device, text, true); }

/* ---- the bus, memory, utilisation -------------------------------------------------------------------------------- */

#define PCI(name, format, value) \
  PROPERTY(name) { \
    nvmlPciInfo_t pci = {0}; \
    nvmlReturn_t result = smi_nvml.nvmlDeviceGetPciInfo_v3(device->handle, &pci); \
    return put(text, result, format, value); \
  }
PCI(pci_domain, "0x%04llX", pci.domain)
PCI(pci_bus, "0x%02llX", pci.bus)
PCI(pci_device, "0x%02llX", pci.device)
PCI(pci_device_id, "0x%08llX", pci.pciDeviceId)
PCI(pci_subsystem_id, "0x%08llX", pci.pciSubSystemId)
PROPERTY(bus_id) {
  nvmlPciInfo_t pci = {0};
  return copy(text, smi_nvml.nvmlDeviceGetPciInfo_v3(device->handle, &pci), pci.busId);
}

#define MIB(bytes) ((bytes) >> 20)
#define MEMORY(name, member) \
  PROPERTY(name) { \
    nvmlMemory_v2_t memory = {.version = sizeof memory | 2u << 24}; \
    nvmlReturn_t result = smi_nvml.nvmlDeviceGetMemoryInfo_v2(device->handle, &memory); \
    return put(text, result, "%llu", MIB(memory.member)); \
  }
MEMORY(memory_total, total)
MEMORY(memory_reserved, reserved)
MEMORY(memory_used, used)
MEMORY(memory_free, free)

#define BAR1(name, member) \
  PROPERTY(name) { \
    nvmlBAR1Memory_t memory = {0}; \
    nvmlReturn_t result = smi_nvml.nvmlDeviceGetBAR1MemoryInfo(device->handle, &memory); \
    return put(text, result, "%llu", MIB(memory.member)); \
  }
BAR1(bar1_total, bar1Total)
BAR1(bar1_used, bar1Used)
BAR1(bar1_free, bar1Free)

#define RATE(name, member) \
  PROPERTY(name) { \
    nvmlUtilization_t rates = {0}; \
    nvmlReturn_t result = smi_nvml.nvmlDeviceGetUtilizationRates(device->handle, &rates); \
    return put(text, result, "%llu", rates.member); \
  }
RATE(utilization, gpu)
RATE(utilization_memory, memory)

PROPERTY(capability) {
  int major = 0, minor = 0;
  if (smi_nvml.nvmlDeviceGetCudaComputeCapability(device->handle, &major, &minor) != NVML_SUCCESS)
    return false;
  snprintf(text, SMI_TEXT, "%d.%d", major, minor);
  return true;
}

/* Of features that no device of this driver has. */
PROPERTY(none) {
  (void)device, (void)text;
  return false;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

const struct smi_field smi_fields[] = {
    {"timestamp", NULL, "", timestamp},
    {"driver_version", NULL, "", driver_version},
    {"count", NULL, "", count},
    {"name", "gpu_name", "", model},
    {"serial", "gpu_serial", "", serial},
    {"uuid", "gpu_uuid", "", uuid},
    {"pci.bus_id", "gpu_bus_id", "", bus_id},
    {"pci.domain", NULL, "", pci_domain},
    {"pci.bus", NULL, "", pci_bus},
    {"pci.device", NULL, "", pci_device},
    {"pci.device_id", NULL, "", pci_device_id},
    {"pci.sub_device_id", NULL, "", pci_subsystem_id},
    {"pcie.link.gen.current", "pcie.link.gen.gpucurrent", "", link_generation},
    {"pcie.link.gen.max", "pcie.link.gen.gpumax", "", link_generation_max},
    {"pcie.link.gen.hostmax", NULL, "", none},
    {"pcie.link.width.current", NULL, "", link_width},
    {"pcie.link.width.max", NULL, "", link_width_max},
    {"index", NULL, "", number},
    {"display_mode", "display_attached", "", display},
    {"display_active", NULL, "", display_active},
    {"persistence_mode", NULL, "", persistence},
    {"addressing_mode", NULL, "", none},
    {"accounting.mode", NULL, "", accounting},
    {"accounting.buffer_size", NULL, "", buffer_size},
    {"driver_model.current", NULL, "", none},
    {"driver_model.pending", NULL, "", none},
    {"vbios_version", NULL, "", vbios},
    {"inforom.img", "inforom.image", "", inforom},
    {"inforom.oem", NULL, "", none},
    {"inforom.ecc", NULL, "", none},
    {"inforom.pwr", "inforom.power", "", none},
    {"gom.current", "gpu_operation_mode.current", "", none},
    {"gom.pending", "gpu_operation_mode.pending", "", none},
    {"fan.speed", NULL, "%", fan},
    {"pstate", NULL, "", state},
    {"memory.total", NULL, "MiB", memory_total},
    {"memory.reserved", NULL, "MiB", memory_reserved},
    {"memory.used", NULL, "MiB", memory_used},
    {"memory.free", NULL, "MiB", memory_free},
    {"compute_mode", NULL, "", compute_mode},
    {"compute_cap", NULL, "", capability},
    {"utilization.gpu", NULL, "%", utilization},
    {"utilization.memory", NULL, "%", utilization_memory},
    {"utilization.encoder", NULL, "%", none},
    {"utilization.decoder", NULL, "%", none},
    {"utilization.jpeg", NULL, "%", none},
    {"utilization.ofa", NULL, "%", none},
    {"encoder.stats.sessionCount", NULL, "", none},
    {"encoder.stats.averageFps", NULL, "", none},
    {"encoder.stats.averageLatency", NULL, "", none},
    {"ecc.mode.current", NULL, "", ecc},
    {"ecc.mode.pending", NULL, "", ecc_pending},
    {"ecc.errors.corrected.volatile.total", NULL, "", none},
    {"ecc.errors.corrected.aggregate.total", NULL, "", none},
    {"ecc.errors.uncorrected.volatile.total", NULL, "", ecc_uncorrected},
    {"ecc.errors.uncorrected.aggregate.total", NULL, "", none},
    {"retired_pages.single_bit_ecc.count", "retired_pages.sbe", "", none},
    {"retired_pages.double_bit.count", "retired_pages.dbe", "", none},
    {"retired_pages.pending", NULL, "", none},
    {"temperature.gpu", NULL, "", temperature},
    {"temperature.gpu.tlimit", NULL, "", none},
    {"temperature.memory", NULL, "", none},
    {"power.management", NULL, "", none},
    {"power.draw", NULL, "W", power},
    {"power.draw.average", NULL, "W", power},
    {"power.draw.instant", NULL, "W", power},
    {"power.limit", NULL, "W", power_limit},
    {"enforced.power.limit", NULL, "W", power_enforced},
    {"power.default_limit", NULL, "W", power_default},
    {"power.min_limit", NULL, "W", power_lowest},
    {"power.max_limit", NULL, "W", power_highest},
    {"clocks.current.graphics", "clocks.gr", "MHz", clock_graphics},
    {"clocks.current.sm", "clocks.sm", "MHz", clock_sm},
    {"clocks.current.memory", "clocks.mem", "MHz", clock_memory},
    {"clocks.current.video", "clocks.video", "MHz", clock_video},
    {"clocks.applications.graphics", "clocks.applications.gr", "MHz", none},
    {"clocks.applications.memory", "clocks.applications.mem", "MHz", none},
    {"clocks.default_applications.graphics", "clocks.default_applications.gr", "MHz", none},
    {"clocks.default_applications.memory", "clocks.default_applications.mem", "MHz", none},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", clock_graphics_max},
    {"clocks.max.sm", NULL, "MHz", clock_sm_max},
    {"clocks.max.memory", "clocks.max.mem", "MHz", clock_memory_max},
    {"clocks_event_reasons.active", "clocks_throttle_reasons.active", "", none},
    {"clocks_event_reasons.supported", "clocks_throttle_reasons.supported", "", none},
    {"clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle", "", none},
    {"clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap", "", none},
    {"clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown", "", none},
    {"clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown", "", none},
    {"clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown", "", none},
    {"mig.mode.current", NULL, "", mig},
    {"mig.mode.pending", NULL, "", mig_pending},
    {"gsp.mode.current", NULL, "", none},
    {"gsp.mode.default", NULL, "", none},
    {"c2c.mode", NULL, "", none},
    {"fabric.state", NULL, "", none},
    {"fabric.status", NULL, "", none},
    /* not of --query-gpu, but of -q */
    {".minor", NULL, "", minor_number},
    {".bar1.total", NULL, "MiB", bar1_total},
    {".bar1.used", NULL, "MiB", bar1_used},
    {".bar1.free", NULL, "MiB", bar1_free},
    {NULL, NULL, NULL, NULL},
};

static bool same(const char *known, const char *name, size_t length) {
  return known && strlen(known) == length && memcmp(known, name, length) == 0;
}

const struct smi_field *smi_field(const char *name, size_t length) {
  for (const struct smi_field *field = smi_fields; field->name; field++)
    if (same(field->name, name, length) || same(field->other, name, length))
      return field;
  return NULL;
}

void smi_value(const struct smi_field *field, const struct smi_device *device, bool unit, const char *unknown,
               char text[SMI_TEXT]) {
  if (!field->get(device, text))
    snprintf(text, SMI_TEXT, "%s", unknown);
  else if (unit && *field->unit)
    snprintf(text + strlen(text), SMI_TEXT - strlen(text), " %s", field->unit);
}

const char *smi_text(const char *name, const struct smi_device *device, bool unit, char text[SMI_TEXT]) {
  smi_value(smi_field(name, strlen(name)), device, unit, "N/A", text);
  return text;
}
