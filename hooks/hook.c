/* The OCI hook: passes the container's state to the daemon and prevents the start if the daemon refuses it.
 *
 * gpushare-hook place --grant ID|any|UUID [--socket PATH]: the createRuntime hook, with the OCI state on stdin. Looks at
 *   what the container sees of its share, and mounts what it does not: what CDI cannot give, what something else was
 *   mounted over, and for `any` or a device's UUID the whole share
 * gpushare-hook create-runtime --grant ID [--socket PATH]: hands the state on and no more, for whoever gives a
 *   container the files of its grant in a way of his own
 * gpushare-hook precreate [--socket PATH]: config.json on stdin, the edited one on stdout (Podman)
 * gpushare-hook refuse REASON: prints REASON and fails; precreate puts this command into a config
 *
 * All fail closed: after any error the container does not start, and the last line on stderr gives the reason. No
 * environment variable is used. */
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
#include "place.h"

enum {
  STATE_MAX = 65536,
  STDIN_MS = 2000 /* the engine writes the state before or right after it starts the hook */
};

struct request {
  const char *verb, *grant, *socket;
};

/* Reads /proc/PPID/name of the parent process. Returns the length without the last byte; 0 on failure. */
static size_t read_of_parent(const char *name, char *out, size_t size) {
  char path[64];
  ssize_t n;
  int fd;

  snprintf(path, sizeof path, "/proc/%d/%s", (int)getppid(), name);
  fd = open(path, O_RDONLY | O_CLOEXEC);
  n = fd < 0 ? 0 : read(fd, out, size);
  if (fd >= 0)
    close(fd);
  return n > 0 ? (size_t)n - 1 : 0;
}

/* crun discards a hook's output: the user would see only the hook's path. So the reason is written to a new file in
 * place of crun's log. crun has the old file open, so that its own message is lost with that. */
static void say_in_log_of_crun(const char *line) {
  static char text[1 << 16];
  char *args[65] = {NULL};
  size_t n = read_of_parent("comm", text, sizeof text), count = 0;
  const char *log;
  struct stat st;

  if (n != 4 || memcmp(text, "crun", 4) != 0)
    return;
  n = read_of_parent("cmdline", text, sizeof text);
  text[n] = '\0';
  for (char *at = text; at < text + n && count < 64; at += strlen(at) + 1)
    args[count++] = at;
  log = count ? gs_json_log(args + 1) : NULL;
  /* Only a regular file that the engine made for this: never /dev/stderr, nor through a link. */
  if (log && *log == '/' && lstat(log, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1 &&
      unlink(log) == 0)
    gs_log_error(log, line);
}

static int say(const char *text) {
  char line[GS_LINE_MAX + 16];

  snprintf(line, sizeof line, "gpushare: %s", text);
  fprintf(stderr, "%s\n", line);
  say_in_log_of_crun(line);
  return 1;
}

/* A grant's id, or a CDI device's name. Other characters are rejected because it becomes part of the request line. */
static int valid_grant(const char *id) {
  size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");

  return n > 0 && n < 64 && !id[n];
}

static int parse(int argc, char **argv, struct request *out) {
  *out = (struct request){.verb = argc > 1 ? argv[1] : "", .socket = GS_NODE_SOCKET};
  for (int i = 2; i < argc; i += 2) {
    if (i + 1 < argc && strcmp(argv[i], "--grant") == 0)
      out->grant = argv[i + 1];
    else if (i + 1 < argc && strcmp(argv[i], "--socket") == 0)
      out->socket = argv[i + 1];
    else
      return -EINVAL;
  }
  if (strcmp(out->verb, "precreate") == 0)
    return out->grant ? -EINVAL : 0;
  if (strcmp(out->verb, "create-runtime") != 0 && strcmp(out->verb, "place") != 0)
    return -EINVAL;
  return out->grant && valid_grant(out->grant) ? 0 : -EINVAL;
}

static int forward(const struct request *request, struct gs_span state) {
  char target[160], line[GS_LINE_MAX];
  struct gs_reply reply;
  struct gs_err err;
  int status;

  snprintf(target, sizeof target, "/v1/hooks/%s?grant=%s", request->verb, request->grant);
  struct gs_call call = {.socket = request->socket,
                         .target = target,
                         .parts = {state},
                         .nparts = 1,
                         .timeout_ms = GS_START_MS,
                         .body_max = STATE_MAX};
  if (gs_node_post(&call, &reply, &err))
    return say(err.msg);
  status = reply.status;
  if (status / 100 != 2) {
    gs_node_reason(&reply, line);
    say(line);
  }
  free(reply.buffer);
  return status / 100 != 2;
}

/* Extracts what place needs from the container's state. */
static int parse_state(struct gs_span state, char bundle[PATH_MAX], pid_t *pid) {
  struct gs_span value;
  char *end;
  long number;

  if (!gs_json_member(state, "bundle", &value) || !gs_json_line(value, bundle, PATH_MAX) || *bundle != '/' ||
      !gs_json_member(state, "pid", &value))
    return -EINVAL;
  number = strtol(value.at, &end, 10);
  *pid = (pid_t)number;
  return number > 1 && number <= INT_MAX && end == value.at + value.len ? 0 : -EINVAL;
}

static int read_bundle(const char *bundle, struct gs_span *config) {
  int dir = open(bundle, O_RDONLY | O_DIRECTORY | O_CLOEXEC), code;
  struct gs_err err;
  mode_t mode;
  char *text;
  bool link;

  if (dir < 0)
    return say("the container's bundle cannot be opened");
  code = gs_read_config(dir, &text, &config->len, &mode, &link, &err);
  /* The runtime has read it: a bundle keeps nothing of a start. */
  gs_bundle_put_back(dir);
  close(dir);
  if (code)
    return say(err.msg);
  config->at = text;
  return 0;
}

/* Asks the daemon what the container gets, and places it. */
static int place_in(const struct request *request, struct gs_span state, struct gs_span config, pid_t pid) {
  char target[160], line[GS_LINE_MAX];
  struct gs_reply reply;
  struct gs_err err;
  int failed = 1;

  snprintf(target, sizeof target, "/v1/oci/place?grant=%s", request->grant);
  struct gs_call call = {.socket = request->socket,
                         .target = target,
                         .parts = {{"{\"state\":", 9}, state, {",\"config\":", 10}, config, {"}", 1}},
                         .nparts = 5,
                         .timeout_ms = GS_START_MS,
                         .body_max = GS_CONFIG_MAX};
  if (gs_node_post(&call, &reply, &err))
    return say(err.msg);
  if (reply.status / 100 != 2) {
    gs_node_reason(&reply, line);
    say(line);
  } else if (!gs_json_is_object(reply.body)) {
    say("the daemon's answer is not a JSON object");
  } else {
    failed = gs_place(pid, reply.body, &err) ? say(err.msg) : 0;
  }
  free(reply.buffer);
  return failed;
}

static int place(const struct request *request, struct gs_span state) {
  char bundle[PATH_MAX];
  struct gs_span config;
  pid_t pid;
  int failed;

  if (parse_state(state, bundle, &pid))
    return say("the container's state on stdin has no pid or no bundle: is this the createRuntime hook?");
  if (read_bundle(bundle, &config))
    return 1;
  failed = gs_json_is_object(config) ? place_in(request, state, config, pid)
                                     : say("the bundle's config.json is not a JSON object");
  free((char *)config.at);
  return failed;
}

static int read_stdin(size_t max, struct gs_span *out) {
  char line[GS_LINE_MAX], *text;
  struct gs_err err;

  if (gs_read_all(STDIN_FILENO, max, STDIN_MS, &text, &out->len, &err)) {
    snprintf(line, sizeof line, "what the engine writes to stdin cannot be read: %s", err.msg);
    return say(line);
  }
  out->at = text;
  return 0;
}

static int hand_on(const struct request *request) {
  struct gs_span state;
  int failed;

  if (read_stdin(STATE_MAX, &state))
    return 1;
  if (!gs_json_is_object(state))
    failed = say("the container's state on stdin is not a JSON object: is this an OCI hook call?");
  else
    failed = strcmp(request->verb, "place") == 0 ? place(request, state) : forward(request, state);
  free((char *)state.at);
  return failed;
}

static int print(struct gs_span text) {
  return fwrite(text.at, 1, text.len, stdout) != text.len || fflush(stdout) ? say("stdout cannot be written") : 0;
}

/* Podman does not show its user the stderr of a failed precreate hook, but does show that of a failed createRuntime
 * hook. A refusal is therefore also an edit: it adds a createRuntime hook that prints the reason and fails. */
static int print_refusal(struct gs_span config, const char *reason) {
  char self[PATH_MAX], *path = NULL, *text = NULL;
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  int failed = 1;

  if (n > 0) {
    self[n] = '\0';
    path = gs_json_string(self);
    text = gs_json_string(reason);
  }
  while (config.len && config.at[config.len - 1] != '}')
    config.len--;
  if (path && text && config.len) {
    config.len--;
    printf("%.*s,\"hooks\":{\"createRuntime\":[{\"path\":%s,\"args\":[\"gpushare-hook\",\"refuse\",%s]}]}}",
           (int)config.len, config.at, path, text);
    failed = ferror(stdout) || fflush(stdout);
  }
  free(path);
  free(text);
  return failed ? say(reason) : 0;
}

static int precreate(const struct request *request) {
  struct gs_span config, edited;
  char line[GS_LINE_MAX];
  struct gs_reply reply;
  int failed;

  if (read_stdin(GS_CONFIG_MAX, &config))
    return 1;
  if (!gs_json_is_object(config))
    failed = say("config.json on stdin is not a JSON object");
  else if (!gs_asks(config.at, config.len)) {
    gs_notice(request->socket, "/", false, config);
    failed = print(config);
  }
  /* Podman writes absolute paths only, so the path of the bundle does not matter. */
  else if (gs_edit(request->socket, "/", false, config, &reply, &edited, line))
    failed = print_refusal(config, line);
  else {
    failed = print(edited);
    free(reply.buffer);
  }
  free((char *)config.at);
  return failed;
}

int main(int argc, char **argv) {
  struct request request;

  if (argc == 3 && strcmp(argv[1], "refuse") == 0)
    return say(argv[2]);
  if (parse(argc, argv, &request)) {
    say("usage: gpushare-hook create-runtime|place --grant ID [--socket PATH] < OCI-state, or precreate < "
        "config.json");
    return 2;
  }
  return request.grant ? hand_on(&request) : precreate(&request);
}
