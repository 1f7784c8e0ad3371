#include "interposer/process/refused.h"

#include <stdio.h>
#include <unistd.h>

#include "page/page.h"

/* Of the call that this thread makes. bytes 0: nothing was refused. */
GS_TLS struct {
  enum gs_refusal why;
  int ordinal;
  uint64_t bytes;
} now;

void gs_refusal_is(enum gs_refusal why, int ordinal, uint64_t bytes) {
  if (ordinal < 0 || (uint32_t)ordinal >= gs_process->ndevices)
    return;
  now.why = why;
  now.ordinal = ordinal;
  now.bytes = bytes;
}

void gs_refusal_over(int ordinal, uint64_t bytes) {
  struct gs_unsaid *unsaid = &gs_process->unsaid;
  now.bytes = 0;
  uint64_t refused = __atomic_load_n(&unsaid->bytes, __ATOMIC_RELAXED);
  /* half of it: programs that are refused also try with less */
  if (GS_UNLIKELY(refused) && __atomic_load_n(&unsaid->ordinal, __ATOMIC_RELAXED) == ordinal && bytes >= refused / 2)
    __atomic_store_n(&unsaid->bytes, 0, __ATOMIC_RELAXED);
}

/* As people write it: 4GiB, 1.25GiB, 512MiB. */
static const char *size_text(char text[24], uint64_t bytes) {
  static const char unit[] = "KMGTPE";
  int power = -1;
  while (power < 5 && bytes >> 10 * (power + 2))
    power++;
  uint64_t one = 1ULL << 10 * (power + 1), rest = bytes % one;
  if (power < 0)
    snprintf(text, 24, "%lluB", (unsigned long long)bytes);
  else if (rest)
    snprintf(text, 24, "%.2f%ciB", (double)bytes / (double)one, unit[power]);
  else
    snprintf(text, 24, "%llu%ciB", (unsigned long long)(bytes / one), unit[power]);
  return text;
}

static struct gs_memory memory_of(const struct gs_process *state, int ordinal) {
  struct gs_pages pages = {state->limits, state->usage};
  return gs_page_memory(&pages, (uint32_t)ordinal, state->total_bytes[ordinal]);
}

static void say(uint32_t why, int ordinal, uint64_t bytes, const struct gs_memory *memory) {
  char asked[24], has[24], left[24], before[24], which[24] = "", shrunk[64] = "";
  const char *grant = gs_process->limits->grant;
  if (__atomic_exchange_n(&gs_process->unsaid.said, 1, __ATOMIC_RELAXED))
    return;
  size_text(asked, bytes);
  size_text(has, memory->total - memory->withdrawn);
  size_text(left, memory->free);
  if (gs_process->ndevices > 1)
    snprintf(which, sizeof which, " on device %d", ordinal);
  if (memory->withdrawn)
    snprintf(shrunk, sizeof shrunk, " (%s when this program began)", size_text(before, memory->total));
  if (why == GS_REFUSED_DEVICE)
    gs_say("%s refused by the driver%s: the device is full, although this share has %s left of --memory %s"
           " (gpushare why %.39s)",
           asked, which, left, has, grant);
  else
    gs_say("%s refused%s: this share has --memory %s%s, of which %s are left (gpushare why %.39s)", asked, which, has,
           shrunk, left, grant);
}

static void note(enum gs_refusal why, int ordinal, uint64_t bytes) {
  struct gs_slot *slot = gs_process->slot;
  struct gs_unsaid *unsaid = &gs_process->unsaid;
  struct gs_memory memory = memory_of(gs_process, ordinal);
  __atomic_store_n(&slot->refused_bytes, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->refused_left, memory.free, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->refused_device, (uint32_t)ordinal, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->refused_why, (uint32_t)why, __ATOMIC_RELAXED);
  __atomic_fetch_add(&slot->refusals, 1, __ATOMIC_RELEASE);
  if (why == GS_REFUSED_AWAY) /* passage/room.c has said it */
    return;
  uint64_t before = __atomic_exchange_n(&unsaid->bytes, bytes, __ATOMIC_RELAXED);
  bool again = before && bytes >= before && __atomic_load_n(&unsaid->ordinal, __ATOMIC_RELAXED) == ordinal;
  __atomic_store_n(&unsaid->ordinal, ordinal, __ATOMIC_RELAXED);
  __atomic_store_n(&unsaid->why, (uint32_t)why, __ATOMIC_RELAXED);
  if (again || bytes > memory.total - memory.withdrawn)
    say(why, ordinal, bytes, &memory);
}

CUresult gs_refused(CUresult result) {
  uint64_t bytes = now.bytes;
  if (GS_LIKELY(bytes == 0))
    return result;
  now.bytes = 0;
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    note(now.why, now.ordinal, bytes);
  return result;
}

CUresult gs_refused_of(CUresult result, uint64_t asked) {
  if (GS_UNLIKELY(now.bytes))
    now.bytes = asked;
  return gs_refused(result);
}

/* Runs as the program exits. In a forked child there is no refusal: the fork has wiped gs_process. */
__attribute__((destructor)) static void say_the_last(void) {
  struct gs_process *state = __atomic_load_n(&gs_process, __ATOMIC_ACQUIRE);
  uint64_t bytes = __atomic_load_n(&state->unsaid.bytes, __ATOMIC_RELAXED);
  if (bytes == 0)
    return;
  int ordinal = __atomic_load_n(&state->unsaid.ordinal, __ATOMIC_RELAXED);
  struct gs_memory memory = memory_of(state, ordinal);
  memory.free = __atomic_load_n(&state->slot->refused_left, __ATOMIC_RELAXED); /* as it was then */
  say(__atomic_load_n(&state->unsaid.why, __ATOMIC_RELAXED), ordinal, bytes, &memory);
}
