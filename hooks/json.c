#include "json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Maximum nesting, more than any engine writes. One bit per level: whether it is an object. */
enum { DEPTH_MAX = 512 };

struct cursor {
  const char *at, *end;
};

static void skip_space(struct cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
    c->at++;
}

static bool take(struct cursor *c, char wanted) {
  skip_space(c);
  if (c->at == c->end || *c->at != wanted)
    return false;
  c->at++;
  return true;
}

static bool skip_string(struct cursor *c, struct gs_span *raw) {
  const char *start = c->at;

  if (!take(c, '"'))
    return false;
  start = c->at - 1;
  for (; c->at < c->end && *c->at != '"'; c->at++) {
    if (*c->at == '\\' && c->end - c->at > 1)
      c->at++;
    if ((unsigned char)*c->at < 0x20)
      return false;
  }
  if (c->at >= c->end)
    return false;
  c->at++;
  *raw = (struct gs_span){start, (size_t)(c->at - start)};
  return true;
}

/* Skips a number or a literal. Its spelling is not checked here: the daemon parses the same text. */
static bool skip_scalar(struct cursor *c) {
  const char *start = c->at;

  while (c->at < c->end && (strchr("+-.", *c->at) ? *c->at != '\0'
                                                  : (*c->at >= '0' && *c->at <= '9') ||
                                                        (*c->at >= 'a' && *c->at <= 'z') || *c->at == 'E'))
    c->at++;
  return c->at > start;
}

static bool skip_name(struct cursor *c) {
  struct gs_span name;

  skip_space(c);
  return skip_string(c, &name) && take(c, ':');
}

/* Moves past one value of any kind. */
static bool skip_value(struct cursor *c, struct gs_span *raw) {
  bool object[DEPTH_MAX];
  struct gs_span ignored;
  unsigned depth = 0;
  const char *start;

  skip_space(c);
  start = c->at;
  for (;;) {
    skip_space(c);
    if (c->at == c->end)
      return false;
    if (*c->at == '{' || *c->at == '[') {
      char closing = *c->at == '{' ? '}' : ']';

      if (depth == DEPTH_MAX)
        return false;
      object[depth++] = closing == '}';
      c->at++;
      if (!take(c, closing)) {
        if (closing == '}' && !skip_name(c))
          return false;
        continue; /* the first member */
      }
      depth--;
    } else if (*c->at == '"' ? !skip_string(c, &ignored) : !skip_scalar(c)) {
      return false;
    }
    /* After a value, its container either continues with a comma or ends too. */
    while (depth && take(c, object[depth - 1] ? '}' : ']'))
      depth--;
    if (!depth)
      break;
    if (!take(c, ',') || (object[depth - 1] && !skip_name(c)))
      return false;
  }
  *raw = (struct gs_span){start, (size_t)(c->at - start)};
  return true;
}

bool gs_json_is_object(struct gs_span text) {
  struct cursor c = {text.at, text.at + text.len};
  struct gs_span raw;

  if (!skip_value(&c, &raw) || *raw.at != '{')
    return false;
  skip_space(&c);
  return c.at == c.end;
}

bool gs_json_member(struct gs_span object, const char *name, struct gs_span *value) {
  struct cursor c = {object.at, object.at + object.len};
  struct gs_span found, raw;
  size_t length = strlen(name);

  if (!take(&c, '{'))
    return false;
  do {
    skip_space(&c);
    if (!skip_string(&c, &found) || !take(&c, ':') || !skip_value(&c, &raw))
      return false;
    if (found.len == length + 2 && memcmp(found.at + 1, name, length) == 0) {
      *value = raw;
      return true;
    }
  } while (take(&c, ','));
  return false;
}

bool gs_json_next(struct gs_span *rest, struct gs_span *value) {
  struct cursor c = {rest->at, rest->at + rest->len};

  if ((!take(&c, '[') && !take(&c, ',')) || !skip_value(&c, value))
    return false;
  *rest = (struct gs_span){c.at, (size_t)(c.end - c.at)};
  return true;
}

static int lower(int c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

static int hex4(const char *at, const char *end) {
  int value = 0;

  if (end - at < 4)
    return -1;
  for (int i = 0; i < 4; i++) {
    const char *digits = "0123456789abcdef", *digit;
    int c = lower(at[i]);

    digit = c ? strchr(digits, c) : NULL;
    if (!digit)
      return -1;
    value = value << 4 | (int)(digit - digits);
  }
  return value;
}

static size_t utf8(uint32_t code, char out[4]) {
  if (code < 0x80) {
    out[0] = (char)(code < 0x20 || code == 0x7f ? ' ' : code);
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = (char)(0xe0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | code >> 18);
  out[1] = (char)(0x80 | (code >> 12 & 0x3f));
  out[2] = (char)(0x80 | (code >> 6 & 0x3f));
  out[3] = (char)(0x80 | (code & 0x3f));
  return 4;
}

/* Decodes the characters after a backslash and moves *at past them. */
static bool escape(const char **at, const char *end, uint32_t *code) {
  char kind = *(*at)++;
  int high, low;

  if (kind != 'u') {
    *code = kind == '"' || kind == '\\' || kind == '/' ? (uint32_t)kind : ' ';
    return true;
  }
  high = hex4(*at, end);
  if (high < 0)
    return false;
  *at += 4;
  *code = (uint32_t)high;
  if (high < 0xd800 || high > 0xdfff)
    return true;
  low = end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u' ? hex4(*at + 2, end) : -1;
  if (high > 0xdbff || low < 0xdc00 || low > 0xdfff) {
    *code = 0xfffd;
    return true;
  }
  *at += 6;
  *code = 0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
  return true;
}

/* The length of the text at `at` that encodes the character `wanted` in either case; 0 if it encodes something else. */
static size_t spells(const char *at, const char *end, char wanted) {
  if (at < end && lower(*at) == wanted)
    return 1;
  if (end - at < 2 || *at != '\\')
    return 0;
  if (at[1] == 'u')
    return lower(hex4(at + 2, end)) == wanted ? 6 : 0;
  return at[1] == wanted ? 2 : 0;
}

bool gs_json_mentions(struct gs_span text, const char *wanted) {
  const char *end = text.at + text.len;

  for (const char *start = text.at; start < end; start++) {
    const char *at = start;
    size_t i = 0, n;

    while (wanted[i] && (n = spells(at, end, wanted[i]))) {
      at += n;
      i++;
    }
    if (!wanted[i])
      return true;
  }
  return false;
}

bool gs_json_line(struct gs_span value, char *out, size_t size) {
  const char *at = value.at + 1, *end = value.at + value.len - 1;
  size_t used = 0;

  if (value.len < 2 || *value.at != '"' || *end != '"')
    return false;
  while (at < end) {
    char piece[4];
    size_t n = 1;

    if (*at == '\\' && at + 1 < end) {
      uint32_t code;

      at++;
      if (!escape(&at, end, &code))
        return false;
      n = utf8(code, piece);
    } else {
      /* UTF-8 is copied in whole characters, so that truncation never splits one. */
      unsigned char lead = (unsigned char)*at;

      size_t most = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

      /* A byte that does not continue the character is examined on its own: it may be an escape or a control
       * character. */
      while (n < most && n < (size_t)(end - at) && ((unsigned char)at[n] & 0xc0) == 0x80)
        n++;
      memcpy(piece, at, n);
      if (lead < 0x20 || lead == 0x7f)
        piece[0] = ' ';
      at += n;
    }
    if (used + n >= size)
      break;
    memcpy(out + used, piece, n);
    used += n;
  }
  out[used] = '\0';
  return true;
}

char *gs_json_string(const char *text) {
  char *out = malloc(strlen(text) * 6 + 3), *to = out;

  if (!out)
    return NULL;
  *to++ = '"';
  for (; *text; text++) {
    if ((unsigned char)*text < 0x20) {
      to += sprintf(to, "\\u%04x", (unsigned)(unsigned char)*text);
      continue;
    }
    if (*text == '"' || *text == '\\')
      *to++ = '\\';
    *to++ = *text;
  }
  *to++ = '"';
  *to = '\0';
  return out;
}
