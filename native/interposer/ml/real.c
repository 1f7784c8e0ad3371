/* The real NVML: opened at the first call, its functions looked up one by one. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "guest.h"
#include "ml.h"
#include "page.h"

enum found { UNKNOWN, PRESENT, ABSENT };

extern void *gs_real[] __attribute__((visibility("hidden"))); /* ml_forward.S */

static void *handle;
static uint32_t found;

static nvmlReturn_t no_library(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }
static nvmlReturn_t no_function(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
static nvmlReturn_t not_allowed(void) { return NVML_ERROR_NO_PERMISSION; }

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

void *gs_ml_real(const char *name) {
  int saved = errno;
  void *function = (void *)no_library;
  if (load()) {
    function = dlsym(handle, name);
    if (!function)
      function = (void *)no_function;
  }
  errno = saved;
  return function;
}

/* Settings of a shared device are not a tenant's. The affinity calls only move the calling thread. */
static bool changes_device(const char *name) {
  static const char *const VERBS[] = {"Set", "Reset", "Clear", "Freeze", "Modify", "Remove", "Create", "Destroy", "Activate",
                                      "Update", "ReadWrite", "ForceGsp"};
  static const char *const OBJECTS[] = {"nvmlDevice", "nvmlUnit", "nvmlGpuInstance", "nvmlComputeInstance", "nvmlSystemSet",
                                        "nvmlSetVgpu", "nvmlVgpuInstance"};
  bool object = false;
  for (unsigned i = 0; i < sizeof OBJECTS / sizeof *OBJECTS; i++)
    object = object || strncmp(name, OBJECTS[i], strlen(OBJECTS[i])) == 0;
  if (!object || strstr(name, "CpuAffinity") || strstr(name, "DeviceGet") || strstr(name, "InstanceGet"))
    return false;
  for (unsigned i = 0; i < sizeof VERBS / sizeof *VERBS; i++)
    if (strstr(name + strlen("nvml"), VERBS[i]))
      return true;
  return false;
}

/* Lists what other tenants' processes did. */
static bool tells_of_others(const char *name) {
  static const char *const NAMES[] = {"nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetAccountingPids",
                                      "nvmlDeviceGetAccountingStats", "nvmlDeviceGetAccountingStats_v2"};
  for (unsigned i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
    if (strcmp(name, NAMES[i]) == 0)
      return true;
  return false;
}

void *gs_resolve(uint32_t index) {
  const char *name = gs_ml_names[index];
  bool refuse = gs_grant_dir() && (changes_device(name) || tells_of_others(name));
  void *function = refuse ? (void *)not_allowed : gs_ml_real(name);
  __atomic_store_n(&gs_real[index], function, __ATOMIC_RELEASE);
  return function;
}

const struct gs_view *gs_ml_view(void) {
  static struct gs_view view; /* filled once: usage first, limits last */
  static const struct gs_view unreadable;
  const char *dir = gs_grant_dir();
  if (!dir)
    return NULL;
  if (!__atomic_load_n(&view.limits, __ATOMIC_ACQUIRE)) {
    struct gs_pages pages;
    struct gs_err err = {0};
    int saved = errno;
    int rc = gs_pages_view(dir, &pages, &err);
    errno = saved;
    if (rc < 0) {
      gs_say("NVML shows no memory: %s", err.msg);
      return &unreadable;
    }
    /* racing threads map twice; which mapping stays does not matter */
    __atomic_store_n(&view.usage, pages.usage, __ATOMIC_RELEASE);
    __atomic_store_n(&view.limits, pages.limits, __ATOMIC_RELEASE);
  }
  return &view;
}
