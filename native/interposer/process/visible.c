#include "interposer/process/visible.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/process/process.h"

#define VARIABLE "CUDA_VISIBLE_DEVICES="
enum { VARIABLE_BYTES = sizeof VARIABLE - 1 };

/* ---- what the program asks for, in the driver's words ------------------------------------------------------------ */

/* The ordinal that an entry of the list refers to, by its number or by enough of its name; -1: none. What follows a
 * number's digits is ignored, as by the driver (github.com/pytorch/pytorch/pull/84879). */
static int named(const struct gs_limits *limits, const char *entry, size_t length) {
  if (isdigit((unsigned char)*entry)) {
    unsigned long number = strtoul(entry, NULL, 10);
    return number < limits->ndevices ? (int)number : -1;
  }
  int found = -1;
  for (uint32_t i = 0; i < limits->ndevices && length > 4; i++) {
    if (strncasecmp(gs_device_name(&limits->device[i]).text, entry, length) != 0)
      continue;
    if (found >= 0)
      return -1;
    found = (int)i;
  }
  return found;
}

static char *put(char *at, const struct gs_limits *limits, int ordinal) {
  struct gs_device_name name = gs_device_name(&limits->device[ordinal]);
  size_t length = strlen(name.text);
  memcpy(at, name.text, length);
  at[length] = ','; /* the last one becomes the end */
  return at + length + 1;
}

unsigned gs_visible_words(const struct gs_limits *limits, const char *asked, char *words) {
  uint32_t count = 0, seen = 0;
  char *at = words;
  if (!asked)
    for (; count < limits->ndevices; count++)
      at = put(at, limits, (int)count);
  while (asked) {
    asked += strspn(asked, " \t");
    size_t length = strcspn(asked, ",");
    int ordinal = named(limits, asked, strcspn(asked, ", \t"));
    if (ordinal < 0)
      break;
    at = put(at, limits, ordinal);
    if (seen >> ordinal & 1) { /* github.com/pytorch/pytorch/pull/92315 */
      count = 0;
      break;
    }
    count++;
    seen |= 1u << ordinal;
    asked = asked[length] ? asked + length + 1 : NULL;
  }
  at[at > words ? -1 : 0] = '\0';
  return count;
}

/* Whether someone who sets the variable so wants no device: "", a negative number, or a word for it. */
static bool wants_none(const char *asked) {
  static const char *const none[] = {"none", "void", "NoDevFiles"};
  asked += strspn(asked, " \t");
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    if (strcasecmp(asked, none[i]) == 0)
      return true;
  return *asked == '\0' || *asked == '-';
}

/* ---- the environment while the driver reads it ------------------------------------------------------------------- */

/* Not setenv: it may move the environment while other threads read it. Here a reader finds the old or the new entry, in
 * the old or the new table, and no table is ever freed. */

/* What the driver reads; changed only while it is not part of the environment, or to the same bytes. */
static char entry[VARIABLE_BYTES + GS_VISIBLE_BYTES];

static char **find(const char *text, size_t length) {
  for (char **at = environ; at && *at; at++)
    if (length ? strncmp(*at, text, length) == 0 : *at == text)
      return at;
  return NULL;
}

/* Adds the entry, in a table that has room for it. Without memory the driver sees the environment as it is. */
static void append(void) {
  static char **roomy; /* the last table that was made here */
  static size_t room;
  char **table = environ, **more = NULL;
  for (;;) {
    size_t count = 0;
    while (table && table[count])
      count++;
    if (table && table == roomy && count + 2 <= room) {
      table[count + 1] = NULL;
      __atomic_store_n(&table[count], entry, __ATOMIC_RELEASE);
      return;
    }
    room = count + 2;
    more = mmap(NULL, room * sizeof *more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED)
      return;
    memcpy(more, table, count * sizeof *more);
    more[count] = entry;
    roomy = more;
    if (__atomic_compare_exchange_n(&environ, &table, more, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
      return;
  }
}

bool gs_visible_begin(void) {
  struct gs_visible *visible = &gs_process->visible;
  if (__atomic_load_n(&visible->read, __ATOMIC_RELAXED))
    return false;
  char words[GS_VISIBLE_BYTES];
  gs_lock(&visible->lock);
  if (visible->inside++ == 0) {
    char **place = find(VARIABLE, VARIABLE_BYTES);
    const char *asked = place ? *place + VARIABLE_BYTES : NULL;
    static uint32_t warned;
    gs_visible_words(gs_process->limits, asked, words);
    if (*words == '\0' && asked && !wants_none(asked) && __atomic_exchange_n(&warned, 1, __ATOMIC_RELAXED) == 0)
      gs_say("CUDA_VISIBLE_DEVICES=%.100s names no device of this share: it has %u, numbered from 0", asked,
             gs_process->ndevices);
    memcpy(entry, VARIABLE, VARIABLE_BYTES);
    strcpy(entry + VARIABLE_BYTES, words);
    visible->before = place ? *place : NULL;
    if (place)
      __atomic_store_n(place, entry, __ATOMIC_RELEASE);
    else
      append();
  }
  gs_unlock(&visible->lock);
  return true;
}

void gs_visible_end(bool initialised) {
  struct gs_visible *visible = &gs_process->visible;
  if (initialised)
    __atomic_store_n(&visible->read, 1, __ATOMIC_RELAXED);
  gs_lock(&visible->lock);
  /* Not there: the program has set the variable meanwhile. */
  char **place = --visible->inside == 0 ? find(entry, 0) : NULL;
  if (place && visible->before)
    __atomic_store_n(place, visible->before, __ATOMIC_RELEASE);
  else if (place)
    for (; *place; place++)
      __atomic_store_n(place, place[1], __ATOMIC_RELEASE);
  gs_unlock(&visible->lock);
}
