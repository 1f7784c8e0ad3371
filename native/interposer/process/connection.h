#ifndef GPUSHARE_CONNECTION_H
#define GPUSHARE_CONNECTION_H

#include <stddef.h>

#include "page/gs_err.h"
#include "page/gs_wire.h"

enum { GS_ANSWER_MS = 2000 };

/* Sends one request and reads one answer, which comes within answer_ms. On success *fd is the open connection, and *given the descriptor that came
 * with the answer, -1 if none did. -EPERM: the daemon refuses, with its reason in err. */
int gs_daemon_ask(const char *dir, const void *request, size_t bytes, int answer_ms, struct gs_join_reply *reply,
                  int *fd, int *given, struct gs_err *err);

#endif
