/* Just enough JSON for the hook and the wrapper: finding values in text that somebody else wrote, and quoting strings.
 * Nothing is allocated but by gs_json_string; no recursion, so that hostile nesting cannot exhaust the stack. */
#ifndef GS_JSON_H
#define GS_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* A piece of somebody else's text; not NUL-terminated. */
struct gs_span {
  const char *at;
  size_t len;
};

/* True when text is one JSON object, with nothing but white space around it. */
bool gs_json_is_object(struct gs_span text);

/* The value of a top-level member, as its raw text; the first one where a name is repeated. */
bool gs_json_member(struct gs_span object, const char *name, struct gs_span *value);

/* Decodes a JSON string into one printable line: control characters become spaces, what does not fit is cut at a
 * character. False when value is not a string. */
bool gs_json_line(struct gs_span value, char *out, size_t size);

/* Quotes bytes as a JSON string, quotes included: NUL-terminated, owned by the caller. NULL without memory. */
char *gs_json_string(const char *text);

#endif
