/* The real driver: opened at the first call, its functions looked up one by one. */
#include "interposer/driver/driver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "interposer/driver/names.h"
#include "interposer/os/files/grant.h"

enum found { UNKNOWN, PRESENT, ABSENT };

static void *handle; /* set before `found` is PRESENT */
static uint32_t found;
static char why[160];

static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }
static CUresult no_device(void) { return CUDA_ERROR_NO_DEVICE; }

/* The driver opens its compilers by name when it first needs one (libnvidia-ptxjitcompiler.so.1, libnvidia-nvvm.so.4).
 * The image has none, or those of another driver, but the loader prefers a library that is already loaded, so they are
 * loaded here. This costs a few ms, once. They need no library except libc's, since the daemon mounts no others
 * here. */
static void open_companions(const char *grant, const char *place) {
  static const char ours[] = "libnvidia-", view[] = "libnvidia-ml.so";
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", grant, place);
  DIR *directory = opendir(path);
  struct dirent *entry;
  while (directory && (entry = readdir(directory))) {
    if (strncmp(entry->d_name, ours, sizeof ours - 1) != 0 || strncmp(entry->d_name, view, sizeof view - 1) == 0)
      continue;
    bool fits = snprintf(path, sizeof path, "%s/%s/%s", grant, place, entry->d_name) < (int)sizeof path;
    if (!fits || !dlopen(path, RTLD_LAZY | RTLD_LOCAL))
      dlerror(); /* the driver itself reports an error when it needs the library */
  }
  if (directory)
    closedir(directory);
}

/* No lock is held during dlopen: a constructor that runs under the loader's lock may call CUDA. Threads that race open
 * the same file twice, which the loader counts. */
static bool load(void) {
  uint32_t seen = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
  if (seen != UNKNOWN)
    return seen == PRESENT;
  void *opened = gs_open_real("libcuda.so.1", why, sizeof why);
  /* the first library of a name counts, so those of the driver in use come first */
  for (int i = 0; opened && gs_in_container() && gs_driver_dirs[i]; i++)
    open_companions(gs_grant_dir(), gs_driver_dirs[i]);
  if (opened)
    __atomic_store_n(&handle, opened, __ATOMIC_RELEASE);
  __atomic_store_n(&found, opened ? PRESENT : ABSENT, __ATOMIC_RELEASE);
  return opened != NULL;
}

bool gs_driver_present(void) {
  int saved = errno;
  bool present = load();
  errno = saved;
  return present;
}

void gs_driver_why(struct gs_err *err) { gs_fail(err, -ENOENT, "%s", why); }

static void *exported(enum gs_index index) { return dlsym(handle, gs_names[index]); }

/* Newer drivers have functions that they do not export and that only cuGetProcAddress returns. This calls it only if
 * the driver is new enough for that very version, because otherwise it would return an older ABI. */
static void *ask_driver(uint32_t index) {
  const struct gs_known *called = &gs_called[index];
  __typeof__(gs_real.cuDriverGetVersion) version_of = exported(GS_INDEX_cuDriverGetVersion);
  __typeof__(gs_real.cuGetProcAddress_v2) address_of = exported(GS_INDEX_cuGetProcAddress_v2);
  int version = 0, status;
  void *function = NULL;
  if (called->version == 0 || !version_of || !address_of || version_of(&version) != CUDA_SUCCESS ||
      version < called->version)
    return NULL;
  cuuint64_t flags =
      called->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  return address_of(called->base, &function, called->version, flags, &status) == CUDA_SUCCESS ? function : NULL;
}

static void *find(uint32_t index) {
  void *function;
  if (!load())
    return (void *)no_device;
  function = dlsym(handle, gs_names[index]);
  if (!function && index < GS_INDEX_COUNT)
    function = ask_driver(index);
  return function ? function : (void *)missing;
}

void *gs_resolve(uint32_t index, void **entry) {
  int saved = errno;
  void *function = find(index);
  __atomic_store_n(entry, function, __ATOMIC_RELEASE);
  errno = saved;
  return function;
}

bool gs_real_has(enum gs_index index) {
  int saved = errno;
  void *function = find(index);
  errno = saved;
  return function != (void *)missing && function != (void *)no_device;
}
