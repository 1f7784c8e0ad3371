/* The runtime wrapper: an OCI runtime for engines without CDI support.
 *
 * gpushare-runtime [--gpushare-runtime=PATH] [--gpushare-socket=PATH] [--gpushare-config=PATH] RUNTIME-ARGUMENTS...
 *
 * For `create` and `run` of a bundle whose config.json requests a share, the daemon edits the config first, and the hook
 * puts the bundle's own back (bundle.h). All other commands and bundles go to the runtime unchanged, whether or not the
 * daemon runs. A bundle whose request cannot be met is not started. The wrapper execs the runtime, so no process of it
 * remains. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"
#include "bundle.h"
#include "edit.h"
#include "node_api.h"

#define CONFIG_FILE "/etc/gpushare/runtime.conf"

enum { SETTINGS_MAX = 4096 };

/* Fixed directories: PATH is under the caller's control. k3s and RKE2 bring a runc of their own, in the last two. */
static const char *const search[] = {"/usr/local/sbin",
                                     "/usr/local/bin",
                                     "/usr/sbin",
                                     "/usr/bin",
                                     "/sbin",
                                     "/bin",
                                     "/var/lib/rancher/k3s/data/current/bin",
                                     "/var/lib/rancher/rke2/bin"};

/* In order of preference. Podman installs only crun. */
static const char *const runtimes[] = {"runc", "crun"};

struct settings {
  char runtime[PATH_MAX], socket[PATH_MAX];
};

/* The result of gs_json_log for this call. */
static const char *engine_log;

static int fail(const char *what) {
  char line[GS_LINE_MAX + 16];

  snprintf(line, sizeof line, "gpushare: %s", what);
  fprintf(stderr, "%s\n", line);
  if (engine_log)
    gs_log_error(engine_log, line);
  return 1;
}

static int set(char out[PATH_MAX], const char *value, struct gs_err *err) {
  if (strlen(value) >= PATH_MAX)
    return gs_fail(err, -ENAMETOOLONG, "path %.100s... is too long", value);
  strcpy(out, value);
  return 0;
}

/* Parses lines of the form `runtime = PATH` or `socket = PATH`; # starts a comment. */
static int parse_settings(const char *path, char *text, struct settings *out, struct gs_err *err) {
  char *save = NULL;

  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    char key[16], value[PATH_MAX], *target;

    line += strspn(line, " \t\r");
    if (!*line || *line == '#')
      continue;
    if (sscanf(line, "%15[a-z] = %4095[^ \t\r\n]", key, value) != 2)
      return gs_fail(err, -EINVAL, "%s: cannot read %.60s: write runtime = PATH or socket = PATH", path, line);
    target = strcmp(key, "runtime") == 0 ? out->runtime : strcmp(key, "socket") == 0 ? out->socket : NULL;
    if (!target)
      return gs_fail(err, -EINVAL, "%s: unknown setting %s: write runtime = PATH or socket = PATH", path, key);
    strcpy(target, value);
  }
  return 0;
}

/* The file decides what runs as root, so it must be writable only by root. A missing file is not an error. */
static int read_settings(const char *path, struct settings *out, struct gs_err *err) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), code = 0;
  struct gs_err cause;
  struct stat st;
  char *text;
  size_t len;

  if (fd < 0)
    return errno == ENOENT ? 0 : gs_fail(err, -errno, "%s: %s", path, strerror(errno));
  if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
    code = gs_fail(err, -EPERM, "%s is not a file that only root can write: mend its owner and mode", path);
  else if (gs_read_all(fd, SETTINGS_MAX, -1, &text, &len, &cause))
    code = gs_fail(err, cause.code, "%.100s: %.90s", path, cause.msg);
  close(fd);
  if (code)
    return code;
  code = parse_settings(path, text, out, err);
  free(text);
  return code;
}

static bool is_self(const char *path) {
  struct stat a, b;

  return stat(path, &a) == 0 && stat("/proc/self/exe", &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int find_runtime(struct settings *settings, struct gs_err *err) {
  if (settings->runtime[0]) {
    if (settings->runtime[0] != '/' || access(settings->runtime, X_OK) != 0)
      return gs_fail(err, -ENOENT, "runtime %.120s is not an executable with an absolute path", settings->runtime);
    if (is_self(settings->runtime))
      return gs_fail(err, -ELOOP, "runtime %.120s is this wrapper itself: name runc or crun", settings->runtime);
    return 0;
  }
  for (size_t n = 0; n < sizeof runtimes / sizeof *runtimes; n++)
    for (size_t i = 0; i < sizeof search / sizeof *search; i++) {
      snprintf(settings->runtime, sizeof settings->runtime, "%s/%s", search[i], runtimes[n]);
      if (access(settings->runtime, X_OK) == 0 && !is_self(settings->runtime))
        return 0;
    }
  return gs_fail(err, -ENOENT, "neither runc nor crun found: install one, or name a runtime in " CONFIG_FILE);
}

/* Parses the wrapper's own leading arguments; returns the index of the runtime's first argument. */
static int own_arguments(int argc, char **argv, struct settings *settings, struct gs_err *err) {
  const char *config = CONFIG_FILE, *runtime = NULL, *socket = NULL, *value;
  int i;

  for (i = 1; i < argc; i++) {
    if ((value = gs_option(argv[i], "--gpushare-runtime")))
      runtime = value;
    else if ((value = gs_option(argv[i], "--gpushare-socket")))
      socket = value;
    else if ((value = gs_option(argv[i], "--gpushare-config")))
      config = value;
    else
      break;
  }
  *settings = (struct settings){.socket = GS_NODE_SOCKET};
  if (read_settings(config, settings, err) || (runtime && set(settings->runtime, runtime, err)) ||
      (socket && set(settings->socket, socket, err)))
    return -1;
  return i;
}

/* The bundle of a create or run command; NULL for other commands. args ends with NULL. */
static const char *bundle_of(char **args) {
  const char *bundle = ".", *value;

  for (; *args && **args == '-'; args++)
    if (gs_takes_value(*args) && args[1])
      args++;
  if (!*args || (strcmp(*args, "create") != 0 && strcmp(*args, "run") != 0))
    return NULL;
  for (args++; *args && strcmp(*args, "--") != 0; args++) {
    if ((strcmp(*args, "--bundle") == 0 || strcmp(*args, "-bundle") == 0 || strcmp(*args, "-b") == 0) && args[1])
      bundle = *++args;
    else if ((value = gs_option(*args, "--bundle")) || (value = gs_option(*args, "-bundle")) ||
             (value = gs_option(*args, "-b")))
      bundle = value;
  }
  return bundle;
}

/* Edits config.json, which asks for a share and is text so far; the claim is the caller's. Returns 0, or 1 if the reason
 * has been printed. */
static int edit(int dir, int claim, const char *bundle, const char *socket) {
  char line[GS_LINE_MAX], *text;
  struct gs_span config;
  struct gs_reply reply;
  struct gs_err err;
  bool link = false;
  mode_t mode = 0;
  size_t len;
  int failed = 1;

  /* Again: it was read before the claim. */
  if (gs_read_config(dir, &text, &len, &mode, &link, &err)) {
    fail(err.msg);
    gs_bundle_leave(dir, claim);
    return 1;
  }
  if (link)
    fail("config.json asks for a share but is a symlink: put the file itself into the bundle");
  else if (!gs_json_is_object((struct gs_span){text, len}))
    fail("config.json asks for a share but is not a JSON object");
  else if (gs_edit(socket, bundle, true, (struct gs_span){text, len}, &reply, &config, line))
    fail(line);
  else {
    failed = 0;
    if (gs_bundle_replace(dir, claim, config, mode, &err))
      failed = fail(err.msg);
    free(reply.buffer);
    free(text);
    return failed;
  }
  gs_bundle_leave(dir, claim);
  free(text);
  return failed;
}

/* Returns 0 to continue with the runtime, 1 if the reason has been printed. */
static int prepare(const char *bundle, const char *socket) {
  char path[PATH_MAX], *text;
  int dir = open(bundle, O_RDONLY | O_DIRECTORY | O_CLOEXEC), failed = 0, claim;
  struct gs_err err;
  bool link = false, asks;
  mode_t mode = 0;
  size_t len;

  /* There is no bundle, or no config in it: the runtime reports this itself. */
  if (dir < 0)
    return 0;
  if (gs_bundle_settle(dir, &err) || gs_read_config(dir, &text, &len, &mode, &link, &err)) {
    close(dir);
    return err.code == -ENOENT ? 0 : fail(err.msg);
  }
  asks = gs_asks(text, len);
  if (!asks)
    gs_notice(socket, realpath(bundle, path) ? path : bundle, true, (struct gs_span){text, len});
  free(text);
  if (asks && !realpath(bundle, path))
    failed = fail("the bundle's path cannot be resolved");
  else if (asks)
    failed = gs_bundle_claim(dir, &claim, &err) ? fail(err.msg) : edit(dir, claim, path, socket);
  close(dir);
  return failed;
}

/* The runtime did not start. */
static void undo(const char *bundle) {
  int dir = open(bundle, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

  if (dir >= 0) {
    gs_bundle_put_back(dir);
    close(dir);
  }
}

int main(int argc, char **argv) {
  struct settings settings;
  const char *bundle;
  struct gs_err err;
  int first;

  if (argc < 1)
    return 1;
  first = own_arguments(argc, argv, &settings, &err);
  if (first < 0 || find_runtime(&settings, &err))
    return fail(err.msg);
  bundle = bundle_of(argv + first);
  engine_log = gs_json_log(argv + first);
  if (bundle && prepare(bundle, settings.socket))
    return 1;
  /* The runtime's argv[0] replaces the last of our own arguments. */
  argv[first - 1] = settings.runtime;
  execv(settings.runtime, argv + first - 1);
  snprintf(err.msg, sizeof err.msg, "%.120s: %s", settings.runtime, strerror(errno));
  if (bundle)
    undo(bundle);
  return fail(err.msg);
}
