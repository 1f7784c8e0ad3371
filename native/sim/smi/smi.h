/* nvidia-smi of the simulated node: what programs and people ask of the real one, answered from NVML alone. In a share
 * the interposer's NVML answers, so it shows what the share sees. */
#ifndef SIM_SMI_H
#define SIM_SMI_H

#include <stdio.h>

#include "sim/nvml/nvml.h"

/* Exit statuses, as nvidia-smi documents them. */
enum smi_status {
  SMI_OK = 0,
  SMI_USAGE = 2,
  SMI_NO_PERMISSION = 4,
  SMI_NOT_FOUND = 6,
  SMI_NO_DRIVER = 9,
  SMI_NO_LIBRARY = 12,
  SMI_NO_FUNCTION = 13,
  SMI_LOST = 15,
  SMI_OTHER = 255
};

enum { SMI_TEXT = 128, SMI_DEVICES = 64, SMI_PROCESSES = 512 };

/* ---- nvml.c ------------------------------------------------------------------------------------------------------ */

#define DEVICE nvmlDevice_t device
#define SMI_NVML(X) \
  X(nvmlInit_v2, (void)) \
  X(nvmlShutdown, (void)) \
  X(nvmlSystemGetDriverVersion, (char *text, unsigned length)) \
  X(nvmlSystemGetNVMLVersion, (char *text, unsigned length)) \
  X(nvmlSystemGetCudaDriverVersion_v2, (int *version)) \
  X(nvmlSystemGetProcessName, (unsigned pid, char *text, unsigned length)) \
  X(nvmlDeviceGetCount_v2, (unsigned *count)) \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device)) \
  X(nvmlDeviceGetName, (DEVICE, char *text, unsigned length)) \
  X(nvmlDeviceGetUUID, (DEVICE, char *text, unsigned length)) \
  X(nvmlDeviceGetSerial, (DEVICE, char *text, unsigned length)) \
  X(nvmlDeviceGetVbiosVersion, (DEVICE, char *text, unsigned length)) \
  X(nvmlDeviceGetInforomImageVersion, (DEVICE, char *text, unsigned length)) \
  X(nvmlDeviceGetPciInfo_v3, (DEVICE, nvmlPciInfo_t * pci)) \
  X(nvmlDeviceGetMinorNumber, (DEVICE, unsigned *number)) \
  X(nvmlDeviceGetMemoryInfo_v2, (DEVICE, nvmlMemory_v2_t * memory)) \
  X(nvmlDeviceGetBAR1MemoryInfo, (DEVICE, nvmlBAR1Memory_t * memory)) \
  X(nvmlDeviceGetUtilizationRates, (DEVICE, nvmlUtilization_t * rates)) \
  X(nvmlDeviceGetComputeRunningProcesses_v3, (DEVICE, unsigned *count, nvmlProcessInfo_v2_t *list)) \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3, (DEVICE, unsigned *count, nvmlProcessInfo_v2_t *list)) \
  X(nvmlDeviceGetCudaComputeCapability, (DEVICE, int *major, int *minor)) \
  X(nvmlDeviceGetPersistenceMode, (DEVICE, unsigned *mode)) \
  X(nvmlDeviceGetDisplayMode, (DEVICE, unsigned *mode)) \
  X(nvmlDeviceGetDisplayActive, (DEVICE, unsigned *mode)) \
  X(nvmlDeviceGetComputeMode, (DEVICE, unsigned *mode)) \
  X(nvmlDeviceGetAccountingMode, (DEVICE, unsigned *mode)) \
  X(nvmlDeviceGetAccountingBufferSize, (DEVICE, unsigned *size)) \
  X(nvmlDeviceGetMigMode, (DEVICE, unsigned *current, unsigned *pending)) \
  X(nvmlDeviceGetEccMode, (DEVICE, unsigned *current, unsigned *pending)) \
  X(nvmlDeviceGetTotalEccErrors, (DEVICE, unsigned kind, unsigned counter, unsigned long long *errors)) \
  X(nvmlDeviceGetFanSpeed, (DEVICE, unsigned *percent)) \
  X(nvmlDeviceGetPerformanceState, (DEVICE, unsigned *state)) \
  X(nvmlDeviceGetTemperature, (DEVICE, unsigned sensor, unsigned *degrees)) \
  X(nvmlDeviceGetPowerUsage, (DEVICE, unsigned *milliwatts)) \
  X(nvmlDeviceGetPowerManagementLimit, (DEVICE, unsigned *milliwatts)) \
  X(nvmlDeviceGetEnforcedPowerLimit, (DEVICE, unsigned *milliwatts)) \
  X(nvmlDeviceGetPowerManagementDefaultLimit, (DEVICE, unsigned *milliwatts)) \
  X(nvmlDeviceGetPowerManagementLimitConstraints, (DEVICE, unsigned *lowest, unsigned *highest)) \
  X(nvmlDeviceGetClockInfo, (DEVICE, unsigned kind, unsigned *mhz)) \
  X(nvmlDeviceGetMaxClockInfo, (DEVICE, unsigned kind, unsigned *mhz)) \
  X(nvmlDeviceGetCurrPcieLinkGeneration, (DEVICE, unsigned *number)) \
  X(nvmlDeviceGetMaxPcieLinkGeneration, (DEVICE, unsigned *number)) \
  X(nvmlDeviceGetCurrPcieLinkWidth, (DEVICE, unsigned *number)) \
  X(nvmlDeviceGetMaxPcieLinkWidth, (DEVICE, unsigned *number))

struct smi_nvml {
#define MEMBER(name, parameters) nvmlReturn_t(*name) parameters;
  SMI_NVML(MEMBER)
#undef MEMBER
  const char *(*nvmlErrorString)(nvmlReturn_t result);
};
extern struct smi_nvml smi_nvml; /* a function that the library lacks returns FUNCTION_NOT_FOUND */

/* Loads the library and initialises it. On an error prints what nvidia-smi prints. */
enum smi_status smi_start(void);
/* The status for a failed call, with a message. */
enum smi_status smi_failed(nvmlReturn_t result);

/* ---- fields.c ---------------------------------------------------------------------------------------------------- */

struct smi_device {
  unsigned index; /* as NVML numbers the devices */
  nvmlDevice_t handle;
};

/* A property of a device, by the name that --query-gpu takes. */
struct smi_field {
  const char *name, *other;                                          /* other: a second name; NULL: none */
  const char *unit;                                                  /* "": none */
  bool (*get)(const struct smi_device *device, char text[SMI_TEXT]); /* false: the device does not say */
};
const struct smi_field *smi_field(const char *name, size_t length); /* NULL: there is none of that name */
extern const struct smi_field smi_fields[];                         /* ends with a name of NULL */
/* The value with its unit, or N/A in the given form. */
void smi_value(const struct smi_field *field, const struct smi_device *device, bool unit, const char *unknown,
               char text[SMI_TEXT]);
/* The same for a field by name; N/A. */
const char *smi_text(const char *name, const struct smi_device *device, bool unit, char text[SMI_TEXT]);
void smi_now(char text[SMI_TEXT], const char *format); /* the local time, as strftime formats it */

/* ---- processes.c ------------------------------------------------------------------------------------------------- */

struct smi_process {
  unsigned pid;
  unsigned long long bytes; /* SMI_NO_BYTES: not known */
  const char *type;         /* C: compute, G: graphics */
  char name[SMI_TEXT];      /* empty: not known */
};
#define SMI_NO_BYTES (~0ull)
/* At most SMI_PROCESSES, compute processes first. */
unsigned smi_processes(const struct smi_device *device, struct smi_process list[SMI_PROCESSES]);

/* ---- what is printed --------------------------------------------------------------------------------------------- */

struct smi_asked {
  struct smi_device device[SMI_DEVICES];
  unsigned count;
  const char *fields; /* of a query, separated by commas */
  bool header, units;
  bool xml;
  const char *sections; /* of -q -d, separated by commas; NULL: all */
};

void smi_table(FILE *out, const struct smi_asked *asked);
void smi_list(FILE *out, const struct smi_asked *asked);
/* false: a field is unknown; nothing but the message is printed */
bool smi_query_devices(FILE *out, const struct smi_asked *asked);
bool smi_query_processes(FILE *out, const struct smi_asked *asked);
void smi_log(FILE *out, const struct smi_asked *asked);

#endif
