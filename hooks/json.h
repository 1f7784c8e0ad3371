/* A minimal JSON scanner for the hook and the runtime wrapper: finds values in untrusted text and quotes strings. Only
 * gs_json_string allocates. No function recurses, so deeply nested input cannot exhaust the stack. */
#ifndef GS_JSON_H
#define GS_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* A piece of text owned by the caller; not NUL-terminated. */
struct gs_span {
  const char *at;
  size_t len;
};

/* True if text is one JSON object, with only white space around it. */
bool gs_json_is_object(struct gs_span text);

/* Finds the raw text of a top-level member's value. If a name is repeated, the first value counts. */
bool gs_json_member(struct gs_span object, const char *name, struct gs_span *value);

/* Takes the next value of an array. *rest: at first the array's text; each call sets it to the remainder. False: there
 * are no more values. */
bool gs_json_next(struct gs_span *rest, struct gs_span *value);

/* True if the text contains the ASCII string `wanted` (in lower case), where each character may also be a capital or a
 * JSON escape of either. Ignores structure: true also for matches outside JSON strings. */
bool gs_json_mentions(struct gs_span text, const char *wanted);

/* Decodes a JSON string into one printable line: control characters become spaces, and the text is truncated at a
 * character boundary to fit size. False if value is not a string. */
bool gs_json_line(struct gs_span value, char *out, size_t size);

/* Returns text as a JSON string with its quotes, NUL-terminated; the caller frees it. NULL: out of memory. */
char *gs_json_string(const char *text);

#endif
