/* Having the daemon edit a container's config.json for the share that it asks for. */
#ifndef GS_EDIT_H
#define GS_EDIT_H

#include "node_api.h"

/* Of a container's config.json, before and after the edit. Docker's are 30 KiB. */
enum { GS_CONFIG_MAX = 8 << 20 };

/* Whether the text asks for a share at all. Cheap, and true rather than false in doubt: the daemon reads it properly. */
bool gs_asks(const char *text, size_t len);

/* config is a JSON object. starts: this process becomes the runtime, whose end before the container's start is a failed
 * start. On success *edited lies inside reply->buffer, which is the caller's; line says why not. */
int gs_edit(const char *socket, const char *bundle, bool starts, struct gs_span config, struct gs_reply *reply,
            struct gs_span *edited, char line[GS_LINE_MAX]);

#endif
