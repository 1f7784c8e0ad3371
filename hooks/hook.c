/* The OCI hook: hands the container's state to the daemon and vetoes the start when the daemon does.
 *
 *   gpushare-hook create-runtime|poststop --grant ID --socket PATH      the OCI state on stdin
 *
 * create-runtime fails closed: whatever goes wrong, the container does not start and the last line on stderr says why.
 * poststop never fails: it is only a fast path, and an engine may stop at the first poststop hook that fails.
 * Nothing is taken from the environment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node_api.h"

enum {
  STATE_MAX = 65536,
  STDIN_MS = 2000,  /* an engine writes the state before or right after it starts the hook */
  BIND_MS = 10000,  /* driver limits are set meanwhile; the engine's own timeout (inject/edits.py) is longer */
  RELEASE_MS = 2000 /* poststop must not hold up a stop */
};

struct request {
  const char *verb, *grant, *socket;
};

static int say(const char *line) {
  fprintf(stderr, "gpushare: %s\n", line);
  return 1;
}

/* Grant ids are made by the daemon: anything else in one would end up in the request line. */
static int valid_grant(const char *id) {
  size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");

  return n > 0 && n < 40 && !id[n];
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
  if (strcmp(out->verb, "create-runtime") != 0 && strcmp(out->verb, "poststop") != 0)
    return -EINVAL;
  return out->grant && valid_grant(out->grant) ? 0 : -EINVAL;
}

static int forward(const struct request *request, int timeout_ms, struct gs_span state) {
  char target[128], line[GS_LINE_MAX];
  struct gs_reply reply;
  struct gs_err err;
  int status;

  snprintf(target, sizeof target, "/v1/hooks/%s?grant=%s", request->verb, request->grant);
  struct gs_call call = {.socket = request->socket,
                         .target = target,
                         .parts = {state},
                         .nparts = 1,
                         .timeout_ms = timeout_ms,
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

static int run(const struct request *request, int timeout_ms) {
  char line[GS_LINE_MAX], *text;
  struct gs_span state;
  struct gs_err err;
  int failed;

  if (gs_read_all(STDIN_FILENO, STATE_MAX, STDIN_MS, &text, &state.len, &err)) {
    snprintf(line, sizeof line, "the container's state on stdin cannot be read: %s", err.msg);
    return say(line);
  }
  state.at = text;
  failed = gs_json_is_object(state) ? forward(request, timeout_ms, state)
                                    : say("the container's state on stdin is not a JSON object: is this an OCI hook call?");
  free(text);
  return failed;
}

int main(int argc, char **argv) {
  struct request request;
  int poststop = argc > 1 && strcmp(argv[1], "poststop") == 0;

  if (parse(argc, argv, &request)) {
    say("usage: gpushare-hook create-runtime|poststop --grant ID [--socket PATH] < OCI-state");
    return poststop ? 0 : 2;
  }
  if (poststop) {
    run(&request, RELEASE_MS);
    return 0;
  }
  return run(&request, BIND_MS);
}
