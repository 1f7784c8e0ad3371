/* Asks the daemon to edit a container's config.json for the share that the config requests. */
#ifndef GS_EDIT_H
#define GS_EDIT_H

#include <sys/stat.h>

#include "node_api.h"

/* Maximum size of config.json, before and after the edit. Docker writes about 30 KiB. */
enum { GS_CONFIG_MAX = 8 << 20 };

/* Reads config.json in the bundle's directory; the caller frees *text. *link is true if it is a symlink: the runtime
 * may follow it, but it is never rewritten here. -ENOENT: there is none. */
int gs_read_config(int dir, char **text, size_t *len, mode_t *mode, bool *link, struct gs_err *err);

/* True if the text may request a share, in our annotations or in NVIDIA's. This is a cheap check with false positives;
 * the daemon parses the config. A request in our annotations is never missed. */
bool gs_asks(const char *text, size_t len);

/* config is a JSON object. starts: this process will exec the runtime; if it ends before the container starts, the
 * start has failed. On success *edited points into reply->buffer, which the caller frees. On failure line holds the
 * reason. */
int gs_edit(const char *socket, const char *bundle, bool starts, struct gs_span config, struct gs_reply *reply,
            struct gs_span *edited, char line[GS_LINE_MAX]);

/* Reports to the daemon a container that starts without a share but may request a GPU in one of NVIDIA's ways; does
 * nothing for other containers. Never fails, and takes at most 20 ms, whatever the daemon does. */
void gs_notice(const char *socket, const char *bundle, bool starts, struct gs_span config);

#endif
