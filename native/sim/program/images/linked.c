#include "sim/program/images/linked.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { CODE = 1, DATA, INPUTS, NAMES, SECTIONS, MACHINE_CUDA = 190, INPUT_ALIGN = 16 };

/* Precedes each input in the section INPUTS; its bytes and a NUL follow, padded to a multiple of INPUT_ALIGN. */
struct header {
  uint64_t magic, bytes, text;
};
#define INPUT_MAGIC 0x67736c696e6b0001ull

static const char names[] = "\0.text.linked\0.nv.global\0.gpushare.inputs\0.shstrtab";
enum { NAME_CODE = 1, NAME_DATA = NAME_CODE + 13, NAME_INPUTS = NAME_DATA + 11, NAME_NAMES = NAME_INPUTS + 18 };

static size_t whole(size_t bytes) { return (bytes + INPUT_ALIGN - 1) / INPUT_ALIGN * INPUT_ALIGN; }
static size_t input_bytes(size_t bytes) { return sizeof(struct header) + whole(bytes + 1); }

static size_t inputs_bytes(const struct sim_link_input *input) {
  size_t total = 0;
  for (; input; input = input->next)
    total += input_bytes(input->bytes);
  return total;
}

unsigned char *sim_linked_write(const struct sim_link_input *inputs, struct sim_program_size size, size_t *bytes) {
  size_t code_at = whole(sizeof(Elf64_Ehdr)), inputs_at = code_at + whole(size.code);
  size_t names_at = inputs_at + inputs_bytes(inputs), table_at = names_at + whole(sizeof names);
  *bytes = table_at + SECTIONS * sizeof(Elf64_Shdr);
  unsigned char *cubin = calloc(1, *bytes);
  if (cubin == NULL)
    return NULL;
  const Elf64_Ehdr header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                             .e_type = ET_EXEC,
                             .e_machine = MACHINE_CUDA,
                             .e_version = EV_CURRENT,
                             .e_shoff = table_at,
                             .e_ehsize = sizeof header,
                             .e_shentsize = sizeof(Elf64_Shdr),
                             .e_shnum = SECTIONS,
                             .e_shstrndx = NAMES};
  const Elf64_Shdr table[SECTIONS] = {
      [CODE] = {NAME_CODE, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 0, code_at, size.code, 0, 0, 128, 0},
      [DATA] = {NAME_DATA, SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 0, inputs_at, size.data, 0, 0, 512, 0},
      [INPUTS] = {NAME_INPUTS, SHT_PROGBITS, 0, 0, inputs_at, names_at - inputs_at, 0, 0, INPUT_ALIGN, 0},
      [NAMES] = {NAME_NAMES, SHT_STRTAB, 0, 0, names_at, sizeof names, 0, 0, 1, 0}};
  memcpy(cubin, &header, sizeof header);
  size_t at = inputs_at;
  for (const struct sim_link_input *input = inputs; input; input = input->next) {
    const struct header one = {INPUT_MAGIC, input->bytes, input->text};
    memcpy(cubin + at, &one, sizeof one);
    memcpy(cubin + at + sizeof one, input->data, input->bytes);
    at += input_bytes(input->bytes);
  }
  memcpy(cubin + names_at, names, sizeof names);
  memcpy(cubin + table_at, table, sizeof table);
  return cubin;
}

/* The offset at which the inputs of a linked program begin; 0: the binary was not linked here. */
static size_t first_input(const unsigned char *binary, size_t bytes) {
  Elf64_Ehdr header;
  Elf64_Shdr section;
  if (bytes < sizeof header || memcmp(binary, ELFMAG, SELFMAG) != 0)
    return 0;
  memcpy(&header, binary, sizeof header);
  if (header.e_shnum != SECTIONS || header.e_shoff > bytes || bytes - header.e_shoff < SECTIONS * sizeof section)
    return 0;
  memcpy(&section, binary + header.e_shoff + INPUTS * sizeof section, sizeof section);
  return section.sh_offset;
}

bool sim_linked_next(const unsigned char *binary, size_t bytes, size_t *at, const unsigned char **data, size_t *length,
                     bool *text) {
  struct header one;
  if (*at == 0)
    *at = first_input(binary, bytes);
  if (*at == 0 || *at > bytes || bytes - *at < sizeof one)
    return false;
  memcpy(&one, binary + *at, sizeof one);
  if (one.magic != INPUT_MAGIC || one.bytes >= bytes || input_bytes(one.bytes) > bytes - *at)
    return false;
  *data = binary + *at + sizeof one;
  *length = one.bytes;
  *text = one.text && (*data)[one.bytes] == '\0';
  *at += input_bytes(one.bytes);
  return true;
}
