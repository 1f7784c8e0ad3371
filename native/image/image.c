#include "image/gs_image.h"

#include <elf.h>
#include <string.h>

enum {
  VARIABLE_ROUND = 512, /* variables are aligned like allocations */
  DEPTH_MAX = 2         /* a wrapper holds a fatbin, which holds images */
};
#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define BYTES_MAX (1ull << 47) /* upper bound of a plausible size, so that sums do not overflow */

struct wrapper {
  uint32_t magic, version;
  const void *data;
  void *file;
};
struct fatbin {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes; /* after the header */
};
/* One part of a fatbin, as nvcc 12 and 13 write it. header_bytes gives the number of bytes of this header that are
 * present. */
struct part {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;            /* after this header */
  uint32_t compressed_bytes; /* 0: not compressed */
  uint32_t options;
  uint16_t minor, major; /* version of the format */
  uint32_t architecture; /* 90: sm_90, compute_90 */
  uint32_t name[2];
  uint64_t flags, unused;
  uint64_t plain_bytes; /* before compression */
};
enum { PTX = 1, CUBIN = 2, PART_HEADER_MIN = 20 };
_Static_assert(sizeof(struct part) == 64, "a part's header");

static uint64_t capped(uint64_t bytes) { return bytes < BYTES_MAX ? bytes : BYTES_MAX; }

static uint64_t round_up(uint64_t bytes, uint64_t multiple) {
  return (capped(bytes) + multiple - 1) / multiple * multiple;
}

static uint64_t times(uint64_t a, uint64_t b) { return b && a > BYTES_MAX / b ? BYTES_MAX : a * b; }

/* ---- cubin ------------------------------------------------------------------------------------------------------- */

static struct gs_image_size elf_size(const unsigned char *image, size_t limit) {
  Elf64_Ehdr header;
  struct gs_image_size sum = {0};
  if (limit < sizeof header)
    return sum;
  memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > limit ||
      (uint64_t)header.e_shnum * sizeof(Elf64_Shdr) > limit - header.e_shoff)
    return sum;
  for (unsigned i = 0; i < header.e_shnum; i++) {
    Elf64_Shdr section;
    memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
    uint64_t *of = section.sh_flags & SHF_EXECINSTR ? &sum.code : &sum.data;
    if (section.sh_flags & SHF_ALLOC)
      *of = capped(*of + round_up(section.sh_size, VARIABLE_ROUND));
  }
  return sum;
}

/* ---- PTX --------------------------------------------------------------------------------------------------------- */

struct text {
  const char *at, *end; /* end NULL: the text ends at a NUL */
};

static char peek(const struct text *text, size_t ahead) {
  for (size_t i = 0; i <= ahead; i++)
    if ((text->end && text->at + i >= text->end) || text->at[i] == '\0')
      return '\0';
  return text->at[ahead];
}

static bool space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool digit(char c) { return c >= '0' && c <= '9'; }
static bool word_char(char c) {
  return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '.' || c == '%';
}

static void skip_blank(struct text *text) {
  for (;;) {
    char c = peek(text, 0), next = c == '/' ? peek(text, 1) : '\0';
    if (space(c)) {
      text->at++;
    } else if (next == '/') {
      while ((c = peek(text, 0)) != '\0' && c != '\n')
        text->at++;
    } else if (next == '*') {
      text->at += 2;
      while (peek(text, 0) != '\0' && !(peek(text, 0) == '*' && peek(text, 1) == '/'))
        text->at++;
      text->at += peek(text, 0) ? 2 : 0;
    } else {
      return;
    }
  }
}

/* A word, a string or a single character. */
static bool token(struct text *text, const char **start, size_t *length) {
  skip_blank(text);
  char c = peek(text, 0);
  *start = text->at;
  if (c == '\0')
    return false;
  text->at++;
  if (c == '"') {
    while ((c = peek(text, 0)) != '\0' && c != '"')
      text->at++;
    text->at += c == '"';
  } else if (word_char(c)) {
    while (word_char(peek(text, 0)))
      text->at++;
  }
  *length = (size_t)(text->at - *start);
  return true;
}

static bool is(const char *start, size_t length, const char *word) {
  return strlen(word) == length && memcmp(start, word, length) == 0;
}

static uint64_t number(const char *start, size_t length) {
  uint64_t value = 0;
  for (size_t i = 0; i < length && digit(start[i]); i++)
    value = capped(value * 10 + (uint64_t)(start[i] - '0'));
  return value;
}

/* Size in bytes of a type such as .u8, .b16, .f32 or .f16x2; 0 if the word is not a type. */
static uint64_t type_bytes(const char *start, size_t length) {
  if (length < 3 || start[0] != '.')
    return 0;
  size_t letters = length > 4 && start[1] == 'b' && start[2] == 'f' ? 2 : 1;
  if (!strchr("usbf", start[1]) || !digit(start[1 + letters]))
    return 0;
  uint64_t bits = number(start + 1 + letters, length - 1 - letters);
  return bits / 8 * (memchr(start + 1, 'x', length - 1) ? 2 : 1);
}

/* Reads a declaration after .global or .const, up to the semicolon. One declaration may name several variables; an
 * array without a length has the length of its initialiser. */
static uint64_t variables(struct text *text) {
  uint64_t sum = 0, element = 0, count = 1, values = 0;
  bool open = false, named = false;
  unsigned depth = 0;
  const char *start;
  size_t length;
  for (bool more = true; more && token(text, &start, &length);) {
    bool ends = *start == ';' || (*start == ',' && depth == 0);
    if (*start == '{')
      depth++, values += values == 0;
    else if (*start == '}')
      depth -= depth > 0;
    else if (*start == ',' && depth > 0)
      values++;
    else if (*start == '[' && depth == 0) {
      if (!token(text, &start, &length))
        break; /* end of the text */
      open = open || *start == ']';
      count = *start == ']' ? count : times(count, number(start, length));
    } else if (is(start, length, ".align"))
      (void)token(text, &start, &length);
    else if (depth == 0 && type_bytes(start, length))
      element = type_bytes(start, length);
    else if (depth == 0 && word_char(*start) && *start != '.')
      named = true;
    if (!ends)
      continue;
    if (named)
      sum = capped(sum + round_up(times(element, times(count, open && values ? values : 1)), VARIABLE_ROUND));
    count = 1, values = 0, open = named = false;
    more = *start != ';';
  }
  return sum;
}

static struct gs_image_size ptx_size(const char *image, size_t limit) {
  struct text text = {image, limit == SIZE_MAX ? NULL : image + limit};
  const char *start;
  size_t length;
  uint64_t data = 0;
  unsigned depth = 0;
  while (token(&text, &start, &length)) {
    if (*start == '{')
      depth++;
    else if (*start == '}')
      depth -= depth > 0;
    else if (depth == 0 && (is(start, length, ".global") || is(start, length, ".const")))
      data = capped(data + variables(&text));
  }
  return (struct gs_image_size){.code = capped((uint64_t)(text.at - image)), .data = data};
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static struct gs_image_size image_size(const unsigned char *image, size_t limit, unsigned capability, int depth);

static uint64_t both(struct gs_image_size size) { return capped(size.code + size.data); }

static struct gs_image_size part_size(const unsigned char *data, const struct part *part, size_t limit) {
  if (part->compressed_bytes)
    return (struct gs_image_size){.code = capped(part->plain_bytes > part->bytes ? part->plain_bytes : part->bytes)};
  return image_size(data, part->bytes < limit ? (size_t)part->bytes : limit, 0, DEPTH_MAX);
}

/* How well a part fits the device: the driver loads the part with the highest value; 0: the part cannot be loaded. A
 * cubin runs on its own minor version and on later ones of the same major version, PTX on all later versions. */
static unsigned fitness(const struct part *part, unsigned capability) {
  enum { BEFORE_TEXT = 1 << 16 };
  bool fits = part->architecture <= capability && part->architecture < BEFORE_TEXT;
  if (part->kind == CUBIN)
    return fits && part->architecture / 10 == capability / 10 ? BEFORE_TEXT + part->architecture : 0;
  return fits && part->kind == PTX ? part->architecture : 0;
}

static struct gs_image_size fatbin_size(const unsigned char *image, size_t limit, unsigned capability) {
  struct fatbin header;
  struct gs_image_size most = {0};
  unsigned best = 0;
  if (limit < sizeof header)
    return most;
  memcpy(&header, image, sizeof header);
  if (header.bytes > BYTES_MAX)
    return most;
  uint64_t end = header.header_bytes + header.bytes;
  end = end < limit ? end : limit;
  for (uint64_t at = header.header_bytes; at + PART_HEADER_MIN <= end;) {
    struct part part = {0};
    memcpy(&part, image + at, PART_HEADER_MIN);
    if (part.header_bytes < PART_HEADER_MIN || part.header_bytes > end - at ||
        part.bytes > end - at - part.header_bytes)
      break;
    memcpy(&part, image + at, part.header_bytes < sizeof part ? part.header_bytes : sizeof part);
    struct gs_image_size size = part_size(image + at + part.header_bytes, &part, part.bytes);
    unsigned fit = fitness(&part, capability);
    if (fit > best || (fit == best && both(size) > both(most)))
      most = size;
    best = fit > best ? fit : best;
    at += part.header_bytes + part.bytes;
  }
  return most;
}

static struct gs_image_size image_size(const unsigned char *image, size_t limit, unsigned capability, int depth) {
  uint32_t magic;
  if (limit < sizeof magic)
    return (struct gs_image_size){0};
  memcpy(&magic, image, sizeof magic);
  if (depth < DEPTH_MAX && magic == FATBIN_MAGIC)
    return fatbin_size(image, limit, capability);
  if (memcmp(image, ELFMAG, SELFMAG) == 0)
    return elf_size(image, limit);
  if (depth == 0 && magic == WRAPPER_MAGIC && limit >= sizeof(struct wrapper)) {
    struct wrapper wrapper;
    memcpy(&wrapper, image, sizeof wrapper);
    if (!wrapper.data || limit != SIZE_MAX)
      return (struct gs_image_size){0};
    return image_size(wrapper.data, SIZE_MAX, capability, 1);
  }
  return ptx_size((const char *)image, limit);
}

struct gs_image_size gs_image_size(const void *image, size_t limit, unsigned capability) {
  return image ? image_size(image, limit, capability, 0) : (struct gs_image_size){0};
}

bool gs_image_wrong(const void *image, size_t limit) {
  struct text text = {image, limit == SIZE_MAX ? NULL : (const char *)image + limit};
  const char *start;
  size_t length;
  uint32_t magic = 0;
  if (!image || limit < sizeof magic)
    return true;
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN_MAGIC || magic == WRAPPER_MAGIC || memcmp(image, ELFMAG, SELFMAG) == 0)
    return false;
  return !token(&text, &start, &length) || !is(start, length, ".version");
}
