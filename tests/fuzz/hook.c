/* The hook's parsers: the daemon's HTTP answer, and the engine's data on stdin. A refusal is written into the
 * container's config: whatever the config was, the result must be JSON that the engine can read. */
#define main hook_main
#include "../../hooks/hook.c"
#undef main
#include "../../hooks/node_api.c"

#include <sys/mman.h>

#include "fuzz.h"

static void answer(const uint8_t *data, size_t size) {
  int ends[2];
  struct gs_reply reply;
  struct gs_err err;
  struct gs_call call = {.target = "/", .timeout_ms = 1000, .body_max = 1 << 16};
  char reason[GS_LINE_MAX];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  MUST(send(ends[1], data, size, MSG_DONTWAIT) == (ssize_t)size);
  shutdown(ends[1], SHUT_WR);
  if (exchange(ends[0], &call, now_ms() + 1000, &reply, &err) == 0) {
    gs_node_reason(&reply, reason);
    MUST(strlen(reason) < sizeof reason && !strchr(reason, '\n'));
    free(reply.buffer);
  }
  close(ends[0]);
  close(ends[1]);
}

static void refusal(const uint8_t *data, size_t size) {
  struct gs_span config = {(const char *)data, size};
  char *written = NULL;
  size_t length = 0;
  FILE *before = stdout;
  if (!gs_json_is_object(config) || !gs_asks(config.at, config.len))
    return;
  stdout = open_memstream(&written, &length);
  MUST(print_refusal(config, "no \"room\"\n") == 0);
  fclose(stdout);
  stdout = before;
  MUST(gs_json_is_object((struct gs_span){written, length}));
  free(written);
}

static void state(const uint8_t *data, size_t size) {
  struct gs_span text = {(const char *)data, size};
  char bundle[PATH_MAX];
  pid_t pid;
  if (gs_json_is_object(text) && parse_state(text, bundle, &pid) == 0)
    MUST(pid > 1 && bundle[0] == '/' && strlen(bundle) < sizeof bundle);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes in = {data, size};
  uint8_t which = take8(&in);
  if (which % 3 == 0)
    refusal(in.at, in.left);
  else if (which % 3 == 1)
    answer(in.at, in.left);
  else
    state(in.at, in.left);
  return 0;
}
