/* The real NVML: opened at the first call, its functions looked up one by one. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "interposer/os/files/grant.h"
#include "interposer/os/guest.h"
#include "interposer/nvml/ml.h"

enum found { UNKNOWN, PRESENT, ABSENT };

static void *handle;
static uint32_t found;

static nvmlReturn_t no_library(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }
static nvmlReturn_t no_function(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

static bool load(void) {
  uint32_t seen = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
  if (seen != UNKNOWN)
    return seen == PRESENT;
  char why[160];
  void *opened = gs_open_real("libnvidia-ml.so.1", why, sizeof why);
  if (!opened && gs_grant_dir())
    gs_say("NVML does not work here: %s", why);
  __atomic_store_n(&handle, opened, __ATOMIC_RELEASE);
  __atomic_store_n(&found, opened ? PRESENT : ABSENT, __ATOMIC_RELEASE);
  return opened != NULL;
}

static void *find(enum gs_ml_index index) {
  if (!load())
    return (void *)no_library;
  void *function = dlsym(handle, gs_ml_names[index]);
  return function ? function : (void *)no_function;
}

typedef nvmlReturn_t (*uuid_function)(nvmlDevice_t device, char *text, unsigned int size);
typedef nvmlReturn_t (*count_function)(unsigned int *count);
typedef nvmlReturn_t (*type_function)(nvmlDevice_t device, unsigned int link, unsigned int *type);

nvmlReturn_t gs_ml_uuid(nvmlDevice_t device, char *text, unsigned int size) {
  static uuid_function known;
  uuid_function real = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (!real)
    __atomic_store_n(&known, real = (uuid_function)find(GS_ML_nvmlDeviceGetUUID), __ATOMIC_RELEASE);
  return real(device, text, size);
}

nvmlReturn_t gs_ml_remote_type(nvmlDevice_t device, unsigned int link, unsigned int *type) {
  static type_function known;
  type_function real = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (!real)
    __atomic_store_n(&known, real = (type_function)find(GS_ML_nvmlDeviceGetNvLinkRemoteDeviceType), __ATOMIC_RELEASE);
  return real(device, link, type);
}

nvmlReturn_t gs_ml_ready(void) {
  static count_function known;
  count_function real = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  unsigned int count;
  if (!real)
    __atomic_store_n(&known, real = (count_function)find(GS_ML_nvmlDeviceGetCount_v2), __ATOMIC_RELEASE);
  return real(&count);
}

/* Fixed answers. Errors of the caller that NVML reports before it checks permissions are still left to NVML. */
static nvmlReturn_t unless(nvmlReturn_t real, nvmlReturn_t ours) { return real != NVML_SUCCESS ? real : ours; }

static nvmlReturn_t device_checked(nvmlDevice_t device, nvmlReturn_t ours) {
  char text[96]; /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */
  return unless(gs_ml_uuid(device, text, sizeof text), ours);
}

static nvmlReturn_t invalid(void) { return unless(gs_ml_ready(), NVML_ERROR_INVALID_ARGUMENT); }
static nvmlReturn_t refused(void) { return unless(gs_ml_ready(), NVML_ERROR_NO_PERMISSION); }
static nvmlReturn_t unsupported(void) { return unless(gs_ml_ready(), NVML_ERROR_NOT_SUPPORTED); }
static nvmlReturn_t refused_device(nvmlDevice_t device) { return device_checked(device, NVML_ERROR_NO_PERMISSION); }
static nvmlReturn_t unsupported_device(nvmlDevice_t device) { return device_checked(device, NVML_ERROR_NOT_SUPPORTED); }

static void *fixed(const struct gs_ml_answer *answer) {
  if (answer->code == NVML_ERROR_INVALID_ARGUMENT)
    return (void *)invalid;
  if (answer->code == NVML_ERROR_NO_PERMISSION)
    return answer->device ? (void *)refused_device : (void *)refused;
  return answer->device ? (void *)unsupported_device : (void *)unsupported;
}

void *gs_resolve(uint32_t index, void **entry) {
  int saved = errno;
  void *function = find(index);
  bool there = function != (void *)no_library && function != (void *)no_function;
  if (there && gs_ml_answers[index].code != NVML_SUCCESS && gs_grant_dir())
    function = fixed(&gs_ml_answers[index]);
  __atomic_store_n(entry, function, __ATOMIC_RELEASE);
  errno = saved;
  return function;
}
