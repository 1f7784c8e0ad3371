#include "edit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { EDIT_MS = 15000 };

bool gs_asks(const char *text, size_t len) { return gs_json_mentions((struct gs_span){text, len}, "gpushare.dev/"); }

int gs_edit(const char *socket, const char *bundle, bool starts, struct gs_span config, struct gs_reply *reply,
            struct gs_span *edited, char line[GS_LINE_MAX]) {
  const char *head = starts ? "{\"starts\":true,\"bundle\":" : "{\"bundle\":";
  char *quoted = gs_json_string(bundle);
  struct gs_err err;
  int code;

  if (!quoted) {
    snprintf(line, GS_LINE_MAX, "out of memory");
    return -ENOMEM;
  }
  struct gs_call call = {
      .socket = socket,
      .target = "/v1/oci/edit",
      .parts = {{head, strlen(head)}, {quoted, strlen(quoted)}, {",\"config\":", 10}, config, {"}", 1}},
      .nparts = 5,
      .timeout_ms = EDIT_MS,
      .body_max = GS_CONFIG_MAX};
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
