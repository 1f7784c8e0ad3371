/* The only place that opens the real driver and looks into it. */
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lookup.h"
#include "os.h"

enum found { UNKNOWN, PRESENT, ABSENT };

static void *handle; /* set before `found` says PRESENT */
static uint32_t found;
static char why[160];

#if defined(__x86_64__)
#define TRIPLET "x86_64-linux-gnu"
#else
#define TRIPLET "aarch64-linux-gnu"
#endif

/* Where a driver package or a container toolkit puts libcuda.so.1. */
static const char *const SYSTEM_DIRS[] = {
    "/usr/lib/" TRIPLET,    "/lib/" TRIPLET, "/usr/lib64", "/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat"};

static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }
static CUresult no_device(void) { return CUDA_ERROR_NO_DEVICE; }

/* A second copy of us under another inode would forward to itself for ever, so the file's identity is not all that is asked. */
__attribute__((visibility("default"))) extern const char gpushare_interposer[];
const char gpushare_interposer[] = "gpushare interposer";

static bool own_file(const char *path) {
  Dl_info self;
  struct stat ours, theirs;
  return dladdr(gpushare_interposer, &self) && gs_stat(self.dli_fname, &ours) == 0 && gs_stat(path, &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

static void *open_driver(const char *path) {
  struct stat file;
  if (gs_stat(path, &file) < 0) {
    snprintf(why, sizeof why, "there is no driver: %.100s: %s", path, strerror(errno));
    return NULL;
  }
  if (own_file(path)) {
    snprintf(why, sizeof why, "there is no driver: %.100s is gpushare itself", path);
    return NULL;
  }
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    const char *reason = dlerror();
    snprintf(why, sizeof why, "the driver cannot be loaded: %.120s", reason ? reason : path);
    return NULL;
  }
  if (dlsym(opened, "gpushare_interposer")) {
    dlclose(opened);
    snprintf(why, sizeof why, "there is no driver: %.100s is gpushare itself", path);
    return NULL;
  }
  return opened;
}

static void *search(const char *dirs) {
  char path[PATH_MAX];
  while (dirs && *dirs) {
    const char *end = strchr(dirs, ':');
    int length = end ? (int)(end - dirs) : (int)strlen(dirs);
    struct stat file;
    if (length > 0 && snprintf(path, sizeof path, "%.*s/libcuda.so.1", length, dirs) < (int)sizeof path &&
        gs_stat(path, &file) == 0) {
      void *opened = open_driver(path);
      if (opened)
        return opened;
    }
    dirs = end ? end + 1 : NULL;
  }
  return NULL;
}

/* Without a grant a program gets the driver it would have got without us. */
static void *open_system_driver(void) {
  Dl_info self;
  char path[PATH_MAX];
  snprintf(why, sizeof why, "there is no driver in the system's library directories");
  const char *slash;
  if (getenv("GPUSHARE_SIM_DIR") && dladdr(gpushare_interposer, &self) && (slash = strrchr(self.dli_fname, '/')) &&
      snprintf(path, sizeof path, "%.*s/sim/libcuda.so.1", (int)(slash - self.dli_fname), self.dli_fname) < (int)sizeof path) {
    void *opened = open_driver(path);
    if (opened)
      return opened;
  }
  void *opened = search(getenv("LD_LIBRARY_PATH"));
  for (size_t i = 0; !opened && i < sizeof SYSTEM_DIRS / sizeof *SYSTEM_DIRS; i++)
    opened = search(SYSTEM_DIRS[i]);
  return opened;
}

/* No lock of ours around dlopen: a constructor running under the loader's lock may call CUDA. Threads that race open the same
 * file twice, which the loader counts. */
static bool load(void) {
  uint32_t seen = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
  if (seen != UNKNOWN)
    return seen == PRESENT;
  const char *grant = gs_grant_dir();
  char path[PATH_MAX];
  void *opened = NULL;
  if (!grant)
    opened = open_system_driver();
  else if (snprintf(path, sizeof path, "%s/driver/libcuda.so.1", grant) < (int)sizeof path)
    opened = open_driver(path);
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

void *gs_resolve(uint32_t index) {
  int saved = errno;
  void *function = (void *)no_device;
  if (load()) {
    function = dlsym(handle, gs_names[index]);
    if (!function)
      function = (void *)missing;
  }
  __atomic_store_n(&((void **)&gs_real)[index], function, __ATOMIC_RELEASE);
  errno = saved;
  return function;
}

bool gs_real_has(enum gs_index index) {
  void *function = gs_resolve(index);
  return function != (void *)missing && function != (void *)no_device;
}
