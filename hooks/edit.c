#define _GNU_SOURCE
#include "edit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTICE_MS = 20, NAME_SIZE = 256 };

/* Annotations in which containerd and CRI-O give a container's name in its pod (also in gpushare/inject/nvidia.py). */
static const char *const pod_names[] = {"io.kubernetes.cri.container-name", "io.kubernetes.container.name"};

/* Every container of a pod has the annotations for all of the pod's containers: those for others must not make it
 * depend on the daemon. */
static bool asks_as_nvidia(struct gs_span config) {
  char name[NAME_SIZE], wanted[NAME_SIZE + 64];
  struct gs_span annotations, value;

  if (!gs_json_mentions(config, ".gpu-memory.") || !gs_json_member(config, "annotations", &annotations))
    return false;
  for (size_t i = 0; i < sizeof pod_names / sizeof *pod_names; i++) {
    if (!gs_json_member(annotations, pod_names[i], &value) || !gs_json_line(value, name, sizeof name) || !*name)
      continue;
    snprintf(wanted, sizeof wanted, "nvidia.com/container.%s.gpu-memory.", name);
    for (char *c = wanted; *c; c++)
      *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    return gs_json_mentions(annotations, wanted);
  }
  return false;
}

int gs_read_config(int dir, char **text, size_t *len, mode_t *mode, bool *link, struct gs_err *err) {
  int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, fd = openat(dir, "config.json", flags | O_NOFOLLOW), code;
  struct gs_err cause;
  struct stat st;

  *link = fd < 0 && errno == ELOOP;
  if (*link)
    fd = openat(dir, "config.json", flags);
  if (fd < 0)
    return gs_fail(err, -errno, "config.json: %s", strerror(errno));
  if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
    code = gs_fail(err, -EINVAL, "config.json is not a regular file");
  else if ((code = gs_read_all(fd, GS_CONFIG_MAX, -1, text, len, &cause)))
    gs_fail(err, code, "config.json: %.180s", cause.msg);
  *mode = st.st_mode & 07777;
  close(fd);
  return code;
}

bool gs_asks(const char *text, size_t len) {
  struct gs_span config = {text, len};

  return gs_json_mentions(config, "gpushare.dev/") || asks_as_nvidia(config);
}

/* A call about a container's config. False: out of memory. The caller frees *quoted after the call. */
static bool about(const char *socket, const char *target, const char *bundle, bool starts, struct gs_span config,
                  char **quoted, struct gs_call *call) {
  const char *head = starts ? "{\"starts\":true,\"bundle\":" : "{\"bundle\":";

  *quoted = gs_json_string(bundle);
  if (!*quoted)
    return false;
  *call = (struct gs_call){
      .socket = socket,
      .target = target,
      .parts = {{head, strlen(head)}, {*quoted, strlen(*quoted)}, {",\"config\":", 10}, config, {"}", 1}},
      .nparts = 5};
  return true;
}

int gs_edit(const char *socket, const char *bundle, bool starts, struct gs_span config, struct gs_reply *reply,
            struct gs_span *edited, char line[GS_LINE_MAX]) {
  struct gs_call call;
  struct gs_err err;
  char *quoted;
  int code;

  if (!about(socket, "/v1/oci/edit", bundle, starts, config, &quoted, &call)) {
    snprintf(line, GS_LINE_MAX, "out of memory");
    return -ENOMEM;
  }
  call.timeout_ms = GS_START_MS;
  call.body_max = GS_CONFIG_MAX;
  code = gs_node_post(&call, reply, &err);
  free(quoted);
  if (code) {
    snprintf(line, GS_LINE_MAX, "%s", err.msg);
    return code;
  }
  if (reply->status / 100 != 2)
    gs_node_reason(reply, line);
  else if (gs_json_is_object(reply->body) && gs_json_member(reply->body, "config", edited) &&
           gs_json_is_object(*edited))
    return 0;
  else
    snprintf(line, GS_LINE_MAX, "the daemon at %.200s answered without an edited config", socket);
  free(reply->buffer);
  return -EPROTO;
}

void gs_notice(const char *socket, const char *bundle, bool starts, struct gs_span config) {
  struct gs_call call;
  struct gs_err err;
  char *quoted;

  if (!gs_json_mentions(config, "nvidia") && !gs_json_mentions(config, "\"major\":195"))
    return;
  if (!gs_json_is_object(config) || !about(socket, "/v1/oci/attempt", bundle, starts, config, &quoted, &call))
    return;
  call.timeout_ms = NOTICE_MS;
  gs_node_tell(&call, &err);
  free(quoted);
}
