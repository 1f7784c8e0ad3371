/* hooks/json.c: input from a daemon, an engine or a container's author. */
#include "fuzz.h"
#include "json.h"

static const char *const NAMES[] = {"error", "message", "config", "", "a"};

static void look_into(struct gs_span text, unsigned depth) {
  char line[64];
  struct gs_span rest = text, value;
  if (gs_json_line(text, line, sizeof line)) {
    MUST(strlen(line) < sizeof line);
    for (const char *c = line; *c; c++)
      MUST((unsigned char)*c >= 0x20 && *c != 0x7f);
  }
  for (size_t i = 0; depth < 3 && i < sizeof NAMES / sizeof *NAMES; i++)
    if (gs_json_member(text, NAMES[i], &value)) {
      MUST(value.at >= text.at && value.at + value.len <= text.at + text.len && value.len > 0);
      look_into(value, depth + 1);
    }
  for (const char *before = text.at; depth < 3 && gs_json_next(&rest, &value); before = value.at + value.len) {
    MUST(value.at > before && value.at + value.len == rest.at && rest.at + rest.len == text.at + text.len);
    look_into(value, depth + 1);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct gs_span text = {(const char *)data, size};
  (void)gs_json_is_object(text);
  if (size > 0 && memmem(data, size, "a/", 2))
    MUST(gs_json_mentions(text, "a/"));
  else
    (void)gs_json_mentions(text, "a/");
  if (size > 0)
    look_into(text, 0);
  /* quoting and parsing returns the original, except for characters that cannot be printed on a line */
  char *copy = strndup((const char *)data, size), *quoted = gs_json_string(copy), *line = malloc(size + 1);
  MUST(gs_json_line((struct gs_span){quoted, strlen(quoted)}, line, size + 1));
  MUST(strlen(line) <= strlen(copy));
  free(copy);
  free(quoted);
  free(line);
  return 0;
}
