#include "sim/program/images/binary.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/model/card.h"
#include "sim/program/ptx/ptx.h"

enum { IMAGE_MAX = 1 << 30, PLACE = SIM_ALLOC_ROUND, DEVICE = 10 * SIM_CAPABILITY_MAJOR + SIM_CAPABILITY_MINOR };

/* The fatbin format of nvcc 12 and 13: a header followed by parts, each with its own header. Fields by offset. */
enum {
  FATBIN_MAGIC = (int)0xba55ed50,
  FATBIN_HEADER_BYTES = 6, /* u16 */
  FATBIN_BYTES = 8,        /* u64, after the header */
  FATBIN_HEADER = 16,
  PART_KIND = 0,          /* u16 */
  PART_HEADER_BYTES = 4,  /* u32 */
  PART_BYTES = 8,         /* u64, after the header */
  PART_COMPRESSED = 16,   /* u32: size in bytes; 0: not compressed */
  PART_HEADER = 20,       /* minimum size */
  PART_ARCHITECTURE = 28, /* u32: 90 for sm_90 and compute_90 */
  PART_PLAIN_BYTES = 56,  /* u64: size before compression */
  KIND_PTX = 1,
  KIND_CUBIN = 2
};
/* The upper byte of sh_info in a kernel's .text section is its number of registers per thread, as in ptxas -v. */
enum { REGISTERS_SHIFT = 24, SHARED_MAX = 1 << 20 };
enum { WRAPPER_MAGIC = 0x466243b1, WRAPPER_DATA = 8 };

/* A range of an image's bytes. */
struct piece {
  const unsigned char *at;
  size_t bytes;
};

/* A little-endian number; 0 beyond the end of the piece. */
static uint64_t field(struct piece piece, size_t offset, size_t width) {
  uint64_t value = 0;
  if (offset <= piece.bytes && width <= piece.bytes - offset)
    memcpy(&value, piece.at + offset, width);
  return value;
}

static uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t total;
  return __builtin_add_overflow(a, b, &total) || total > SIM_ADDRESS_SPACE ? SIM_ADDRESS_SPACE : total;
}

static uint64_t in_place(uint64_t bytes) { return (sum(bytes, 0) + PLACE - 1) / PLACE * PLACE; }

enum sim_image_form sim_image_form(const void *image) {
  struct piece piece = {image, sizeof(uint32_t)};
  int magic = (int)field(piece, 0, sizeof(uint32_t));
  if (magic == WRAPPER_MAGIC)
    return SIM_FORM_WRAPPER;
  if (magic == FATBIN_MAGIC)
    return SIM_FORM_FATBIN;
  return memcmp(image, ELFMAG, SELFMAG) == 0 ? SIM_FORM_CUBIN : SIM_FORM_TEXT;
}

const void *sim_wrapped(const void *wrapper) {
  const void *data;
  memcpy(&data, (const unsigned char *)wrapper + WRAPPER_DATA, sizeof data);
  return data;
}

/* ---- lengths ----------------------------------------------------------------------------------------------------- */

size_t sim_binary_bytes(const void *image) {
  if (sim_image_form(image) == SIM_FORM_FATBIN) {
    struct piece header = {image, FATBIN_HEADER};
    uint64_t before = field(header, FATBIN_HEADER_BYTES, 2), bytes = field(header, FATBIN_BYTES, 8);
    return before >= FATBIN_HEADER && bytes <= IMAGE_MAX ? before + bytes : 0;
  }
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  uint64_t sections = sum(header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize);
  uint64_t segments = sum(header.e_phoff, (uint64_t)header.e_phnum * header.e_phentsize);
  uint64_t bytes = sections > segments ? sections : segments;
  bool sane = header.e_ident[EI_CLASS] == ELFCLASS64 && bytes >= sizeof header && bytes <= IMAGE_MAX;
  return sane ? bytes : 0;
}

/* ---- sizes when loaded ------------------------------------------------------------------------------------------- */

struct sim_program_size sim_text_size(const char *text) {
  struct sim_program_size size = {.code = sum(strlen(text), 0)};
  struct sim_ptx ptx;
  sim_ptx_read(text, &ptx);
  for (const struct sim_ptx_variable *variable = ptx.variables; variable; variable = variable->next)
    size.data = sum(size.data, in_place(variable->bytes));
  sim_ptx_free(&ptx);
  return size;
}

/* The section table of a cubin; 0 bytes: the cubin has none, or an incomplete one. */
static struct piece sections(struct piece cubin) {
  Elf64_Ehdr header;
  if (cubin.bytes < sizeof header)
    return (struct piece){0};
  memcpy(&header, cubin.at, sizeof header);
  uint64_t table = (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      sum(header.e_shoff, table) > cubin.bytes)
    return (struct piece){0};
  return (struct piece){cubin.at + header.e_shoff, table};
}

static Elf64_Shdr section_at(struct piece table, uint64_t index) {
  Elf64_Shdr section = {0};
  if (index < table.bytes / sizeof section)
    memcpy(&section, table.at + index * sizeof section, sizeof section);
  return section;
}

/* The content of a section in the file; 0 bytes if it is incomplete. */
static struct piece content(struct piece cubin, const Elf64_Shdr *section) {
  if (sum(section->sh_offset, section->sh_size) > cubin.bytes)
    return (struct piece){0};
  return (struct piece){cubin.at + section->sh_offset, section->sh_size};
}

static struct sim_program_size cubin_size(struct piece cubin) {
  struct sim_program_size size = {0};
  struct piece table = sections(cubin);
  for (uint64_t i = 0; i < table.bytes / sizeof(Elf64_Shdr); i++) {
    Elf64_Shdr section = section_at(table, i);
    if (!(section.sh_flags & SHF_ALLOC))
      continue;
    if (section.sh_flags & SHF_EXECINSTR)
      size.code = sum(size.code, in_place(section.sh_size));
    else
      size.data = sum(size.data, in_place(section.sh_size));
  }
  return size;
}

/* True if prefix and name together are at an offset of a string table. */
static bool is_called(struct piece names, size_t offset, const char *prefix, const char *name) {
  size_t first = strlen(prefix), second = strlen(name) + 1;
  return offset <= names.bytes && first + second <= names.bytes - offset &&
         memcmp(names.at + offset, prefix, first) == 0 && memcmp(names.at + offset + first, name, second) == 0;
}

static uint64_t cubin_variable(struct piece cubin, const char *name) {
  struct piece table = sections(cubin);
  for (uint64_t i = 0; i < table.bytes / sizeof(Elf64_Shdr); i++) {
    Elf64_Shdr section = section_at(table, i), linked = section_at(table, section.sh_link);
    struct piece symbols = content(cubin, &section), names = content(cubin, &linked);
    if (section.sh_type != SHT_SYMTAB)
      continue;
    for (Elf64_Sym symbol; symbols.bytes >= sizeof symbol;
         symbols.at += sizeof symbol, symbols.bytes -= sizeof symbol) {
      memcpy(&symbol, symbols.at, sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && is_called(names, symbol.st_name, "", name))
        return symbol.st_size;
    }
  }
  return 0;
}

static bool cubin_kernel(struct piece cubin, const char *name, struct sim_kernel_needs *needs) {
  struct piece table = sections(cubin);
  Elf64_Shdr strings = section_at(table, field(cubin, offsetof(Elf64_Ehdr, e_shstrndx), sizeof(Elf64_Half)));
  struct piece names = content(cubin, &strings);
  struct sim_kernel_needs stated = {0};
  bool found = false;
  for (uint64_t i = 0; i < table.bytes / sizeof(Elf64_Shdr); i++) {
    Elf64_Shdr section = section_at(table, i);
    if (is_called(names, section.sh_name, ".text.", name)) {
      found = true;
      stated.registers = section.sh_info >> REGISTERS_SHIFT;
    } else if (is_called(names, section.sh_name, ".nv.shared.", name) && section.sh_size <= SHARED_MAX) {
      stated.shared = (unsigned)section.sh_size;
    }
  }
  if (found)
    *needs = stated;
  return found;
}

struct part {
  struct piece header, body;
};

/* Reads the part at an offset of a fatbin and moves *offset past it. False if the part is incomplete. */
static bool next_part(struct piece fatbin, size_t *offset, struct part *part) {
  if (*offset > fatbin.bytes || fatbin.bytes - *offset < PART_HEADER)
    return false;
  struct piece rest = {fatbin.at + *offset, fatbin.bytes - *offset};
  uint64_t before = field(rest, PART_HEADER_BYTES, 4), bytes = field(rest, PART_BYTES, 8);
  if (before < PART_HEADER || before > rest.bytes || bytes > rest.bytes - before)
    return false;
  *part = (struct part){{rest.at, before}, {rest.at + before, bytes}};
  *offset += before + bytes;
  return true;
}

static struct sim_program_size part_size(const struct part *part) {
  struct sim_program_size size = {0};
  struct piece body = part->body;
  if (field(part->header, PART_COMPRESSED, 4)) {
    uint64_t plain = field(part->header, PART_PLAIN_BYTES, 8);
    size.code = sum(plain > body.bytes ? plain : body.bytes, 0);
  } else if (body.bytes >= SELFMAG && memcmp(body.at, ELFMAG, SELFMAG) == 0) {
    size = cubin_size(body);
  } else if (body.bytes >= SELFMAG) {
    char *text = strndup((const char *)body.at, body.bytes);
    size = text ? sim_text_size(text) : size;
    free(text);
  }
  return size;
}

/* The order in which parts are preferred: cubins before PTX, newer architectures before older, 0 for a part that does
 * not fit. A cubin runs on its own minor version and on later ones of the same major version, PTX on all later
 * versions. */
static unsigned preference(const struct part *part) {
  enum { CUBINS_FIRST = 1000 };
  uint64_t kind = field(part->header, PART_KIND, 2), architecture = field(part->header, PART_ARCHITECTURE, 4);
  if (architecture > DEVICE)
    return 0;
  if (kind == KIND_CUBIN && architecture / 10 == DEVICE / 10)
    return CUBINS_FIRST + (unsigned)architecture;
  return kind == KIND_PTX ? (unsigned)architecture : 0;
}

struct sim_program_size sim_binary_size(const void *image, size_t bytes) {
  struct piece whole = {image, bytes};
  struct sim_program_size chosen = {0};
  unsigned best = 0;
  struct part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return cubin_size(whole);
  for (size_t at = field(whole, FATBIN_HEADER_BYTES, 2); next_part(whole, &at, &part);) {
    struct sim_program_size size = part_size(&part);
    unsigned preferred = preference(&part);
    if (preferred > best || (preferred == best && size.code + size.data > chosen.code + chosen.data))
      chosen = size;
    best = preferred > best ? preferred : best;
  }
  return chosen;
}

uint64_t sim_binary_variable(const void *image, size_t bytes, const char *name) {
  struct piece whole = {image, bytes};
  uint64_t found = 0;
  struct part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return cubin_variable(whole, name);
  for (size_t at = field(whole, FATBIN_HEADER_BYTES, 2); found == 0 && next_part(whole, &at, &part);)
    if (field(part.header, PART_KIND, 2) == KIND_CUBIN && !field(part.header, PART_COMPRESSED, 4))
      found = cubin_variable(part.body, name);
  return found;
}

bool sim_binary_kernel(const void *image, size_t bytes, const char *name, struct sim_kernel_needs *needs) {
  struct piece whole = {image, bytes};
  unsigned best = 0;
  struct part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return cubin_kernel(whole, name, needs);
  for (size_t at = field(whole, FATBIN_HEADER_BYTES, 2); next_part(whole, &at, &part);)
    if (preference(&part) > best && !field(part.header, PART_COMPRESSED, 4) && cubin_kernel(part.body, name, needs))
      best = preference(&part);
  return best > 0;
}

bool sim_binary_compressed(const void *image, size_t bytes) {
  struct piece whole = {image, bytes};
  struct part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return false;
  for (size_t at = field(whole, FATBIN_HEADER_BYTES, 2); next_part(whole, &at, &part);)
    if (field(part.header, PART_COMPRESSED, 4))
      return true;
  return false;
}
