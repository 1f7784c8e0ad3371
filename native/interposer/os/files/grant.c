#include "interposer/os/files/grant.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "interposer/os/guest.h"
#include "interposer/os/system.h"
#include "page/gs_root.h"

static const char *const CONTAINER_DIR = "/run/gpushare/self";
/* In the mount namespace that `gpushare run` makes for root's commands; elsewhere it is empty. */
static const char *const OWN_DIR = "/run/gpushare/own";
const char *const gs_driver_dirs[] = {"compat", "driver", NULL};

/* Kept outside struct gs_process because it also holds in a forked child. */
static char grant_dir[PATH_MAX];
static uint32_t grant_dir_known; /* 0 unknown, 1 none, 2 grant_dir */

#if defined(__x86_64__)
#define TRIPLET "x86_64-linux-gnu"
#else
#define TRIPLET "aarch64-linux-gnu"
#endif

/* Directories where driver packages and container toolkits put libcuda.so.1. */
static const char *const SYSTEM_DIRS[] = {
    "/usr/lib/" TRIPLET, "/lib/" TRIPLET,           "/usr/lib64",       "/lib64",
    "/usr/lib",          "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/local/cuda/compat"};

/* Only root decides where a grant is: the tenant can change the environment. In a sandbox with a user namespace root's
 * directory belongs to nobody. A tenant that forges one there has not joined, and is found like any that does not. */
static bool trusted(const char *dir) {
  struct stat file;
  return gs_stat(dir, &file) == 0 && S_ISDIR(file.st_mode) && gs_is_roots(file.st_uid);
}

/* A user's own daemon has simulated devices only (`gpushare run --simulate`), and nobody else looks at what its
 * directories say. In a setuid program the environment is somebody else's, who may have put files into a directory of
 * its user's. */
static bool own_simulated(const char *dir) {
  char path[PATH_MAX];
  struct stat file;
  return !getauxval(AT_SECURE) && gs_stat(dir, &file) == 0 && S_ISDIR(file.st_mode) && file.st_uid == geteuid() &&
         snprintf(path, sizeof path, "%s/sim", dir) < (int)sizeof path && gs_stat(path, &file) == 0;
}

static bool missing(const char *dir) {
  struct stat file;
  return gs_stat(dir, &file) < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES);
}

static bool find_page(const char *dir, struct stat *page) {
  char path[PATH_MAX];
  return trusted(dir) && snprintf(path, sizeof path, "%s/limits", dir) < (int)sizeof path && gs_stat(path, page) == 0;
}

/* Whether the process is to use the grant at OWN_DIR. It is not if its environment names another one: a user's run in a
 * run of root's. */
static bool own_grant(const char *named) {
  struct stat own, other;
  if (!find_page(OWN_DIR, &own))
    return false;
  return !named || !find_page(named, &other) || (own.st_dev == other.st_dev && own.st_ino == other.st_ino);
}

/* The mounts come first: in a container the tenant may be root, and the environment may be another process's. */
static const char *find_grant(void) {
  const char *named = getenv("GPUSHARE_GRANT_DIR");
  struct stat file;
  if (gs_stat(CONTAINER_DIR, &file) == 0 && S_ISDIR(file.st_mode)) {
    if (named && strcmp(named, CONTAINER_DIR) != 0)
      gs_say("GPUSHARE_GRANT_DIR=%.200s is ignored: this container's grant is the one mounted for it", named);
    return CONTAINER_DIR;
  }
  if (own_grant(named))
    return OWN_DIR;
  if (!named)
    return NULL;
  /* one that is missing is kept: the process was meant to have a share, and learns why it has none */
  if (named[0] == '/' && strlen(named) < PATH_MAX - 32 && (trusted(named) || own_simulated(named) || missing(named)))
    return named;
  gs_say("GPUSHARE_GRANT_DIR=%.200s is ignored: root does not own that directory", named);
  return NULL;
}

const char *gs_grant_dir(void) {
  uint32_t known = __atomic_load_n(&grant_dir_known, __ATOMIC_ACQUIRE);
  if (known == 0) {
    int saved = errno;
    const char *found = find_grant();
    /* racing threads write the same bytes */
    if (found)
      memcpy(grant_dir, found, strlen(found) + 1);
    known = found ? 2 : 1;
    __atomic_store_n(&grant_dir_known, known, __ATOMIC_RELEASE);
    errno = saved;
  }
  return known == 2 ? grant_dir : NULL;
}

int gs_grant_check(struct gs_err *err) {
  const char *dir = gs_grant_dir();
  struct stat file;
  int code = !dir || gs_stat(dir, &file) == 0 ? 0 : errno;
  if (code == 0)
    return 0;
  return gs_fail(
      err, -code,
      "GPUSHARE_GRANT_DIR is not here (%s): bind it and the driver's files (for root's commands: --bind %s) into "
      "the sandbox, or unset it if the grant has ended",
      strerror(code), OWN_DIR);
}

bool gs_in_container(void) {
  const char *grant = gs_grant_dir();
  return grant && strcmp(grant, CONTAINER_DIR) == 0;
}

/* A second copy of the interposer under another inode would forward to itself for ever, so comparing the file's
 * identity is not enough. */
__attribute__((visibility("default"))) extern const char gpushare_interposer[];
const char gpushare_interposer[] = "gpushare interposer";

static bool own_file(const char *path) {
  Dl_info self;
  struct stat ours, theirs;
  return dladdr(gpushare_interposer, &self) && gs_stat(self.dli_fname, &ours) == 0 && gs_stat(path, &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

/* In the mount namespace of a command of root's the interposer covers the driver's files, so the links in the grant's
 * directory lead to it, and OWN_DIR alone has the driver: a sandbox may hide that. */
static void say_own(const char *path, char *why, size_t size) {
  const char *dir = gs_grant_dir();
  bool named = dir && strcmp(dir, OWN_DIR) != 0 && strcmp(dir, CONTAINER_DIR) != 0 && !strncmp(path, dir, strlen(dir));
  snprintf(why, size, "there is no driver: %.90s is gpushare itself%s%s", path,
           named ? "; in root's sandbox --bind " : "", named ? OWN_DIR : "");
}

static void *open_file(const char *path, char *why, size_t size) {
  struct stat file;
  if (gs_stat(path, &file) < 0) {
    snprintf(why, size, "there is no driver: %.100s: %s", path, strerror(errno));
    return NULL;
  }
  if (own_file(path)) {
    say_own(path, why, size);
    return NULL;
  }
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    const char *reason = dlerror();
    snprintf(why, size, "the driver cannot be loaded: %.120s", reason ? reason : path);
    return NULL;
  }
  if (dlsym(opened, "gpushare_interposer")) {
    dlclose(opened);
    snprintf(why, size, "there is no driver: %.100s is gpushare itself", path);
    return NULL;
  }
  return opened;
}

static void *search(const char *dirs, const char *file_name, char *why, size_t size) {
  char path[PATH_MAX];
  while (dirs && *dirs) {
    const char *end = strchr(dirs, ':');
    int length = end ? (int)(end - dirs) : (int)strlen(dirs);
    struct stat file;
    if (length > 0 && snprintf(path, sizeof path, "%.*s/%s", length, dirs, file_name) < (int)sizeof path &&
        gs_stat(path, &file) == 0) {
      void *opened = open_file(path, why, size);
      if (opened)
        return opened;
    }
    dirs = end ? end + 1 : NULL;
  }
  return NULL;
}

/* Without a grant a program gets the driver that it would have got without the interposer. */
static void *open_system(const char *file_name, char *why, size_t size) {
  Dl_info self;
  char path[PATH_MAX];
  snprintf(why, size, "there is no %s in the system's library directories", file_name);
  const char *slash;
  if (getenv("GPUSHARE_SIM_DIR") && dladdr(gpushare_interposer, &self) && (slash = strrchr(self.dli_fname, '/')) &&
      snprintf(path, sizeof path, "%.*s/sim/%s", (int)(slash - self.dli_fname), self.dli_fname, file_name) <
          (int)sizeof path) {
    void *opened = open_file(path, why, size);
    if (opened)
      return opened;
  }
  void *opened = search(getenv("LD_LIBRARY_PATH"), file_name, why, size);
  for (size_t i = 0; !opened && i < sizeof SYSTEM_DIRS / sizeof *SYSTEM_DIRS; i++)
    opened = search(SYSTEM_DIRS[i], file_name, why, size);
  return opened;
}

void *gs_open_real(const char *file, char *why, size_t size) {
  const char *grant = gs_grant_dir();
  char path[PATH_MAX];
  struct stat ignored;
  if (!grant)
    return open_system(file, why, size);
  /* where the interposer is mounted over the driver's files, OWN_DIR has them */
  snprintf(path, sizeof path, "%s/driver/%s", OWN_DIR, file);
  if (!gs_in_container() && trusted(OWN_DIR) && gs_stat(path, &ignored) == 0)
    return open_file(path, why, size);
  for (int i = 0; gs_driver_dirs[i]; i++) {
    if (snprintf(path, sizeof path, "%s/%s/%s", grant, gs_driver_dirs[i], file) >= (int)sizeof path) {
      snprintf(why, size, "the grant directory's name is too long");
      return NULL;
    }
    if (gs_stat(path, &ignored) == 0)
      break;
  }
  return open_file(path, why, size);
}
