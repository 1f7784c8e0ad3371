#include "sim/program/images/binary.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/program/images/parts.h"
#include "sim/program/ptx/ptx.h"

enum { IMAGE_MAX = 1 << 30, PLACE = SIM_ALLOC_ROUND };

/* The upper byte of sh_info in a kernel's .text section is its number of registers per thread, as in ptxas -v. */
enum { REGISTERS_SHIFT = 24, SHARED_MAX = 1 << 20 };
enum { WRAPPER_MAGIC = 0x466243b1, WRAPPER_DATA = 8 };

static uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t total;
  return __builtin_add_overflow(a, b, &total) || total > SIM_ADDRESS_SPACE ? SIM_ADDRESS_SPACE : total;
}

static uint64_t in_place(uint64_t bytes) { return (sum(bytes, 0) + PLACE - 1) / PLACE * PLACE; }

enum sim_image_form sim_image_form(const void *image) {
  struct sim_piece piece = {image, sizeof(uint32_t)};
  int magic = (int)sim_field(piece, 0, sizeof(uint32_t));
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
    struct sim_piece header = {image, FATBIN_HEADER};
    uint64_t before = sim_field(header, FATBIN_HEADER_BYTES, 2), bytes = sim_field(header, FATBIN_BYTES, 8);
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
static struct sim_piece sections(struct sim_piece cubin) {
  Elf64_Ehdr header;
  if (cubin.bytes < sizeof header)
    return (struct sim_piece){0};
  memcpy(&header, cubin.at, sizeof header);
  uint64_t table = (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      sum(header.e_shoff, table) > cubin.bytes)
    return (struct sim_piece){0};
  return (struct sim_piece){cubin.at + header.e_shoff, table};
}

static Elf64_Shdr section_at(struct sim_piece table, uint64_t index) {
  Elf64_Shdr section = {0};
  if (index < table.bytes / sizeof section)
    memcpy(&section, table.at + index * sizeof section, sizeof section);
  return section;
}

/* The content of a section in the file; 0 bytes if it is incomplete. */
static struct sim_piece content(struct sim_piece cubin, const Elf64_Shdr *section) {
  if (sum(section->sh_offset, section->sh_size) > cubin.bytes)
    return (struct sim_piece){0};
  return (struct sim_piece){cubin.at + section->sh_offset, section->sh_size};
}

static struct sim_program_size cubin_size(struct sim_piece cubin) {
  struct sim_program_size size = {0};
  struct sim_piece table = sections(cubin);
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
static bool is_called(struct sim_piece names, size_t offset, const char *prefix, const char *name) {
  size_t first = strlen(prefix), second = strlen(name) + 1;
  return offset <= names.bytes && first + second <= names.bytes - offset &&
         memcmp(names.at + offset, prefix, first) == 0 && memcmp(names.at + offset + first, name, second) == 0;
}

static uint64_t cubin_variable(struct sim_piece cubin, const char *name) {
  struct sim_piece table = sections(cubin);
  for (uint64_t i = 0; i < table.bytes / sizeof(Elf64_Shdr); i++) {
    Elf64_Shdr section = section_at(table, i), linked = section_at(table, section.sh_link);
    struct sim_piece symbols = content(cubin, &section), names = content(cubin, &linked);
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

/* Information about a kernel, in .nv.info.NAME: records of a form, an attribute and a size or a short value. */
enum {
  RECORD_HEADER = 4,
  RECORD_FORM = 0,      /* u8 */
  RECORD_ATTRIBUTE = 1, /* u8 */
  RECORD_BYTES = 2,     /* u16, if the form is FORM_SIZED: of what follows */
  FORM_SIZED = 4,
  ATTRIBUTE_PARAMETER = 0x17,
  PARAMETER_ORDINAL = 4, /* u16 */
  PARAMETER_OFFSET = 6,  /* u16 */
  PARAMETER_SIZE = 8,    /* u32, of which the upper 14 bits are the size */
  PARAMETER_SIZE_SHIFT = 18
};

static void read_parameters(struct sim_piece info, struct sim_kernel_needs *needs) {
  needs->params_known = true;
  for (size_t at = 0; at + RECORD_HEADER <= info.bytes;) {
    bool sized = sim_field(info, at + RECORD_FORM, 1) == FORM_SIZED;
    uint64_t attribute = sim_field(info, at + RECORD_ATTRIBUTE, 1), bytes = sim_field(info, at + RECORD_BYTES, 2);
    size_t data = at + RECORD_HEADER;
    at = data + (sized ? bytes : 0);
    if (!sized || attribute != ATTRIBUTE_PARAMETER)
      continue;
    uint64_t ordinal = sim_field(info, data + PARAMETER_ORDINAL, 2);
    if (ordinal >= SIM_PARAMS_MAX) {
      needs->params_known = false;
      return;
    }
    needs->params[ordinal] =
        (struct sim_param){(uint16_t)sim_field(info, data + PARAMETER_OFFSET, 2),
                           (uint16_t)(sim_field(info, data + PARAMETER_SIZE, 4) >> PARAMETER_SIZE_SHIFT)};
    needs->nparams = ordinal + 1 > needs->nparams ? (unsigned)ordinal + 1 : needs->nparams;
  }
}

static bool cubin_kernel(struct sim_piece cubin, const char *name, struct sim_kernel_needs *needs) {
  struct sim_piece table = sections(cubin);
  Elf64_Shdr strings = section_at(table, sim_field(cubin, offsetof(Elf64_Ehdr, e_shstrndx), sizeof(Elf64_Half)));
  struct sim_piece names = content(cubin, &strings);
  struct sim_kernel_needs stated = {0};
  bool found = false;
  for (uint64_t i = 0; i < table.bytes / sizeof(Elf64_Shdr); i++) {
    Elf64_Shdr section = section_at(table, i);
    if (is_called(names, section.sh_name, ".text.", name)) {
      found = true;
      stated.registers = section.sh_info >> REGISTERS_SHIFT;
    } else if (is_called(names, section.sh_name, ".nv.shared.", name) && section.sh_size <= SHARED_MAX) {
      stated.shared = (unsigned)section.sh_size;
    } else if (is_called(names, section.sh_name, ".nv.info.", name)) {
      read_parameters(content(cubin, &section), &stated);
    }
  }
  if (found)
    *needs = stated;
  return found;
}

static struct sim_program_size part_size(const struct sim_part *part) {
  struct sim_program_size size = {0};
  struct sim_piece body = part->body;
  if (sim_field(part->header, PART_COMPRESSED, 4)) {
    uint64_t plain = sim_field(part->header, PART_PLAIN_BYTES, 8);
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

struct sim_program_size sim_binary_size(const void *image, size_t bytes) {
  struct sim_piece whole = {image, bytes};
  struct sim_program_size chosen = {0};
  unsigned best = 0;
  struct sim_part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return cubin_size(whole);
  for (size_t at = sim_field(whole, FATBIN_HEADER_BYTES, 2); sim_part_next(whole, &at, &part);) {
    struct sim_program_size size = part_size(&part);
    unsigned preferred = sim_part_preference(&part);
    if (preferred > best || (preferred == best && size.code + size.data > chosen.code + chosen.data))
      chosen = size;
    best = preferred > best ? preferred : best;
  }
  return chosen;
}

uint64_t sim_binary_variable(const void *image, size_t bytes, const char *name) {
  struct sim_piece whole = {image, bytes};
  uint64_t found = 0;
  struct sim_part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return cubin_variable(whole, name);
  for (size_t at = sim_field(whole, FATBIN_HEADER_BYTES, 2); found == 0 && sim_part_next(whole, &at, &part);)
    if (sim_field(part.header, PART_KIND, 2) == KIND_CUBIN && !sim_field(part.header, PART_COMPRESSED, 4))
      found = cubin_variable(part.body, name);
  return found;
}

/* The same for a PTX text, of which only the declarations are known. */
static bool text_kernel(struct sim_piece body, const char *name, struct sim_kernel_needs *needs) {
  char *text = strndup((const char *)body.at, body.bytes);
  struct sim_ptx ptx = {0};
  bool found = false;
  if (text)
    sim_ptx_read(text, &ptx);
  for (const struct sim_ptx_kernel *kernel = ptx.kernels; kernel && !found; kernel = kernel->next) {
    found = strlen(name) == kernel->name_length && memcmp(kernel->name, name, kernel->name_length) == 0;
    if (!found)
      continue;
    *needs = (struct sim_kernel_needs){.registers = SIM_REGISTERS_ASSUMED,
                                       .shared = (unsigned)kernel->shared_bytes,
                                       .params_known = kernel->params_known,
                                       .nparams = kernel->nparams};
    memcpy(needs->params, kernel->params, kernel->nparams * sizeof needs->params[0]);
  }
  sim_ptx_free(&ptx);
  free(text);
  return found;
}

static bool part_kernel(const struct sim_part *part, const char *name, struct sim_kernel_needs *needs) {
  if (sim_field(part->header, PART_COMPRESSED, 4))
    return false;
  return sim_field(part->header, PART_KIND, 2) == KIND_PTX ? text_kernel(part->body, name, needs)
                                                           : cubin_kernel(part->body, name, needs);
}

bool sim_binary_kernel(const void *image, size_t bytes, const char *name, struct sim_kernel_needs *needs) {
  struct sim_piece whole = {image, bytes};
  unsigned best = 0;
  struct sim_part part;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return cubin_kernel(whole, name, needs);
  for (size_t at = sim_field(whole, FATBIN_HEADER_BYTES, 2); sim_part_next(whole, &at, &part);)
    if (sim_part_preference(&part) > best && part_kernel(&part, name, needs))
      best = sim_part_preference(&part);
  return best > 0;
}

bool sim_binary_compressed(const void *image, size_t bytes) {
  struct sim_piece whole = {image, bytes};
  struct sim_part part;
  bool fits = false, any = false, fitting = false;
  if (sim_image_form(image) != SIM_FORM_FATBIN)
    return false;
  for (size_t at = sim_field(whole, FATBIN_HEADER_BYTES, 2); sim_part_next(whole, &at, &part);) {
    bool compressed = sim_field(part.header, PART_COMPRESSED, 4), loadable = sim_part_preference(&part) > 0;
    fits |= loadable;
    any |= compressed;
    fitting |= loadable && compressed;
  }
  return fits ? fitting : any;
}

unsigned char *sim_binary_expand(const void *image, size_t bytes, size_t *size) {
  struct sim_piece whole = {image, bytes};
  if (sim_image_form(image) == SIM_FORM_FATBIN)
    return sim_fatbin_expand(whole, size);
  unsigned char *copy = malloc(bytes);
  if (copy)
    memcpy(copy, image, bytes);
  *size = bytes;
  return copy;
}
