#include "sim/program/ptx/ptx_names.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- of the language (PTX ISA 9.0) ------------------------------------------------------------------------------- */

static const char instructions[] =
    " abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx call clz"
    " clusterlaunchcontrol cnot copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma "
    "fns"
    " getctarank griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar"
    " min mma mov movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux"
    " rem ret rsqrt sad selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix sub"
    " subc suld suq sured sust szext tanh tcgen05 tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd"
    " vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4"
    " wgmma wmma xor ";

static const char types[] = " .b1 .b128 .b16 .b2 .b32 .b4 .b64 .b8 .bf16 .bf16x2 .e2m1x2 .e2m3 .e2m3x2 .e3m2 .e3m2x2 "
                            ".e4m3 .e4m3x2 .e5m2 .e5m2x2"
                            " .f16 .f16x2 .f32 .f32x2 .f64 .pred .s16 .s32 .s64 .s8 .samplerref .surfref .texref .tf32 "
                            ".u16 .u32 .u64 .u8 .ue8m0"
                            " .ue8m0x2 ";
/* Space: of a pointer, behind .ptr. */
static const char properties[] = " .const .global .local .ptr .shared .v2 .v4 .v8 ";

/* Registers of the device, without the leading % and without a number at the end. */
static const char special[] =
    " tid ntid laneid warpid nwarpid ctaid nctaid smid nsmid gridid is_explicit_cluster clusterid nclusterid"
    " cluster_ctaid cluster_nctaid cluster_ctarank cluster_nctarank lanemask_eq lanemask_le lanemask_lt lanemask_ge"
    " lanemask_gt clock clock_hi pm pm0_ pm1_ pm2_ pm3_ pm4_ pm5_ pm6_ pm7_ envreg globaltimer globaltimer_lo "
    "globaltimer_hi reserved_smem_offset_begin"
    " reserved_smem_offset_end reserved_smem_offset_cap reserved_smem_offset_ total_smem_size aggr_smem_size"
    " dynamic_smem_size current_graph_exec ";

static bool listed(const char *list, const char *word, size_t length) {
  char padded[40];
  if (length + 3 > sizeof padded)
    return false;
  padded[0] = ' ';
  memcpy(padded + 1, word, length);
  memcpy(padded + 1 + length, " ", 2);
  return strstr(list, padded) != NULL;
}

static size_t to_dot(const char *word, size_t length) {
  const char *dot = memchr(word, '.', length);
  return dot ? (size_t)(dot - word) : length;
}

bool sim_ptx_instruction(const struct sim_lexer *lexer) {
  return listed(instructions, lexer->word, to_dot(lexer->word, lexer->length));
}

bool sim_ptx_type(const struct sim_lexer *lexer) { return listed(types, lexer->word, lexer->length); }
bool sim_ptx_property(const struct sim_lexer *lexer) { return listed(properties, lexer->word, lexer->length); }

/* .u33 is no type. Of the many modifiers these alone are checked. */
static bool odd_type(const char *word, size_t length) {
  size_t digits = 2;
  if (length < 3 || strchr("bfsu", word[1]) == NULL)
    return false;
  while (digits < length && isdigit((unsigned char)word[digits]))
    digits++;
  return digits == length && !listed(" 1 2 4 8 16 32 64 128 256 1024 ", word + 2, length - 2);
}

bool sim_ptx_odd_modifier(const struct sim_lexer *lexer, size_t *at, size_t *length) {
  for (*at = to_dot(lexer->word, lexer->length); *at < lexer->length; *at += *length) {
    *length = 1 + to_dot(lexer->word + *at + 1, lexer->length - *at - 1);
    if (odd_type(lexer->word + *at, *length))
      return true;
  }
  return false;
}

/* A whole number in any base, or the bits of a floating-point number, or one with a point. */
static bool number(const char *word, size_t length) {
  static const char decimal[] = "0123456789", hexadecimal[] = "0123456789abcdefABCDEF";
  char text[40];
  if (length >= sizeof text)
    return false;
  memcpy(text, word, length);
  text[length] = '\0';
  if (text[length - 1] == 'U')
    text[--length] = '\0';
  if (text[0] == '0' && length > 2 && strchr("xXfFdD", text[1]))
    return strspn(text + 2, hexadecimal) == length - 2;
  if (text[0] == '0' && length > 2 && strchr("bB", text[1]))
    return strspn(text + 2, "01") == length - 2;
  size_t whole = strspn(text, decimal);
  if (text[whole] == '.')
    whole += 1 + strspn(text + whole + 1, decimal);
  if (text[whole] == 'e' || text[whole] == 'E')
    whole += 1 + strspn(text + whole + 1, decimal); /* a sign after it is an operator here */
  return whole == length;
}

static size_t without_number(const char *word, size_t length) {
  while (length > 0 && isdigit((unsigned char)word[length - 1]))
    length--;
  return length;
}

/* A number, a string, the sink, a type or modifier, or a register of the device. */
static bool of_the_language(const char *word, size_t length) {
  if (isdigit((unsigned char)*word))
    return number(word, length);
  if (*word == '.' || (*word == '_' && length == 1))
    return true;
  if (*word == '%' && length > 1)
    return listed(special, word + 1, without_number(word + 1, to_dot(word + 1, length - 1)));
  return listed(" WARP_SZ generic mask ", word, length);
}

/* ---- of the text ------------------------------------------------------------------------------------------------- */

static size_t hash(const char *at, size_t length) {
  uint64_t sum = 1469598103934665603u; /* FNV-1a */
  for (size_t i = 0; i < length; i++)
    sum = (sum ^ (unsigned char)at[i]) * 1099511628211u;
  return (size_t)(sum ^ sum >> 32);
}

/* The place of a name in the table, or the empty one where it belongs. */
static struct sim_ptx_name *place(const struct sim_ptx_names *names, const char *at, size_t length) {
  size_t i = hash(at, length) & (names->room - 1);
  while (names->table[i].at && (names->table[i].length != length || memcmp(names->table[i].at, at, length) != 0))
    i = (i + 1) & (names->room - 1);
  return &names->table[i];
}

static bool grow(struct sim_ptx_names *names) {
  struct sim_ptx_names larger = {.room = names->room ? names->room * 2 : 256, .used = names->used};
  larger.table = calloc(larger.room, sizeof *larger.table);
  if (larger.table == NULL) {
    names->no_memory = true;
    return false;
  }
  for (size_t i = 0; i < names->room; i++)
    if (names->table[i].at)
      *place(&larger, names->table[i].at, names->table[i].length) = names->table[i];
  free(names->table);
  names->table = larger.table;
  names->room = larger.room;
  return true;
}

void sim_ptx_names_declare(struct sim_ptx_names *names, const char *at, size_t length, size_t count) {
  if (names->used * 2 >= names->room && !grow(names))
    return;
  struct sim_ptx_name *name = place(names, at, length);
  if (name->at && name->count >= count)
    return;
  names->used += name->at == NULL;
  *name = (struct sim_ptx_name){at, length, count > name->count ? count : name->count};
}

void sim_ptx_names_refer(struct sim_ptx_names *names, const struct sim_lexer *word) {
  if (!sim_lexer_is_word(word) || of_the_language(word->word, word->length))
    return;
  if (names->nreferences == names->reference_room) {
    size_t room = names->reference_room ? names->reference_room * 2 : 256;
    struct sim_ptx_name *more = realloc(names->references, room * sizeof *more);
    if (more == NULL) {
      names->no_memory = true;
      return;
    }
    names->references = more;
    names->reference_room = room;
  }
  /* %r1.x is a part of the vector %r1 */
  names->references[names->nreferences++] = (struct sim_ptx_name){word->word, to_dot(word->word, word->length), 0};
}

static bool declared(const struct sim_ptx_names *names, const struct sim_ptx_name *reference) {
  if (names->room == 0)
    return false;
  if (place(names, reference->at, reference->length)->at)
    return true;
  size_t stem = without_number(reference->at, reference->length);
  if (stem == reference->length || reference->length - stem > 10)
    return false;
  char number[16] = "";
  memcpy(number, reference->at + stem, reference->length - stem);
  return strtoull(number, NULL, 10) < place(names, reference->at, stem)->count;
}

const struct sim_ptx_name *sim_ptx_names_unknown(const struct sim_ptx_names *names) {
  for (size_t i = 0; i < names->nreferences; i++)
    if (!declared(names, &names->references[i]))
      return &names->references[i];
  return NULL;
}

void sim_ptx_names_free(struct sim_ptx_names *names) {
  free(names->table);
  free(names->references);
}
