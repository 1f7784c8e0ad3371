/* One request to the node API over its unix socket, with a timeout. Used by short-lived programs that run as root; the
 * peer must be root. */
#ifndef GS_NODE_API_H
#define GS_NODE_API_H

#include "page/gs_err.h"
#include "json.h"

#define GS_NODE_SOCKET "/run/gpushare/node.sock"

enum {
  GS_LINE_MAX = 1024,
  /* Of a call that a container's start waits for. Engines wait longer for a hook (gpushare/inject/edits.py,
   * gpushare/engines/podman.py), so that their users see its message. The last 5 s are for the daemon's own work, such
   * as setting driver limits and inspecting the image. */
  GS_START_MS = 15000
};

struct gs_reply {
  int status;   /* HTTP status */
  char *buffer; /* owned by the caller, freed with free() */
  struct gs_span body;
};

struct gs_call {
  const char *socket;
  const char *target; /* path and query, already encoded */
  struct gs_span parts[8];
  unsigned nparts; /* the request body is the parts, in order */
  int timeout_ms;  /* for the whole call, the wait for a daemon that is away included */
  size_t body_max; /* a longer response body is an error */
};

/* Sends a POST request and reads the response. 0 or a negative errno; a response of any HTTP status is a success. A
 * daemon that has run here and is away, such as one that is restarted, is waited for, at most 10 s. If it ends with the
 * request, the request is sent to the next daemon, so it must be one that may be repeated. */
int gs_node_post(const struct gs_call *call, struct gs_reply *reply, struct gs_err *err);
/* Sends the request without waiting for a response or for a daemon that is away; for requests that may be lost. */
int gs_node_tell(const struct gs_call *call, struct gs_err *err);

/* The daemon's one-line reason from a response that is not 2xx, or a generic line if it has none. */
void gs_node_reason(const struct gs_reply *reply, char out[GS_LINE_MAX]);

/* Reads a descriptor to its end, up to max bytes and timeout_ms (< 0: no timeout). *buffer is NUL-terminated, and the
 * caller frees it. */
int gs_read_all(int fd, size_t max, int timeout_ms, char **buffer, size_t *len, struct gs_err *err);

#endif
