#include "interposer/process/trace.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interposer/os/guest.h"
#include "interposer/process/process.h"

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#else
#define DTRACE_PROBE4(provider, name, a, b, c, d) ((void)0)
#endif

enum { KINDS_READ = 1u << GS_TRACE_NONE }; /* bit 0: the variable was read; the other bits are the kinds printed */
_Static_assert(GS_TRACE_COUNT <= 32, "a bit for each kind");

/* The kinds whose area GPUSHARE_DEBUG named at the first event, a bit for each. The variable itself is not kept: the
 * program may free or overwrite its environment. A forked child prints the same kinds. */
static uint32_t printed_kinds;

/* Whether `area` is one of the comma-separated `names`, or those are "all". */
static bool named(const char *names, const char *area) {
  size_t length = strlen(area);
  if (strcmp(names, "all") == 0)
    return true;
  for (const char *at = names; (at = strstr(at, area)); at += length)
    if ((at == names || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
      return true;
  return false;
}

static bool printed(enum gs_trace_kind kind) {
  uint32_t kinds = __atomic_load_n(&printed_kinds, __ATOMIC_RELAXED);
  if (!kinds) {
    const char *names = getenv("GPUSHARE_DEBUG");
    kinds = KINDS_READ;
    for (uint32_t each = GS_TRACE_NONE + 1; names && each < GS_TRACE_COUNT; each++)
      kinds |= named(names, gs_trace_area(each)) ? 1u << each : 0;
    __atomic_store_n(&printed_kinds, kinds, __ATOMIC_RELAXED); /* racing threads store the same */
  }
  return kinds >> kind & 1;
}

static void print(enum gs_trace_kind kind, int ordinal, uint64_t at, uint64_t a, uint64_t b) {
  char text[200], device[24] = "";
  if (ordinal >= 0)
    snprintf(device, sizeof device, "device %d: ", ordinal);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* gs_trace.h's texts, each with two %llu */
  snprintf(text, sizeof text, gs_trace_text(kind), (unsigned long long)a, (unsigned long long)b);
#pragma GCC diagnostic pop
  gs_debug("[%d] %llu.%06llu %s: %s%s", (int)getpid(), (unsigned long long)(at / 1000000000),
           (unsigned long long)(at / 1000 % 1000000), gs_trace_area(kind), device, text);
}

/* NULL: not joined, or in a slot that has no ring. */
static struct gs_trace_ring *ring_of(const struct gs_process *process) {
  bool joined = __atomic_load_n(&process->joined, __ATOMIC_ACQUIRE) == GS_JOINED;
  return joined && process->slot_index < GS_TRACE_RINGS ? &process->usage->trace[process->slot_index] : NULL;
}

void gs_trace(enum gs_trace_kind kind, int ordinal, uint64_t a, uint64_t b) {
  uint64_t now = gs_now();
  struct gs_trace_ring *ring = ring_of(gs_process);
  if (ring) {
    uint64_t number = __atomic_fetch_add(&ring->count, 1, __ATOMIC_RELAXED);
    struct gs_trace_event *event = &ring->event[number % GS_TRACE_EVENTS];
    __atomic_store_n(&event->kind, GS_TRACE_NONE, __ATOMIC_RELEASE);
    /* atomic, because a thread that lost its processor here may collide with one that writes the ring's next round */
    __atomic_store_n(&event->time_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&event->device, ordinal, __ATOMIC_RELAXED);
    __atomic_store_n(&event->a, a, __ATOMIC_RELAXED);
    __atomic_store_n(&event->b, b, __ATOMIC_RELAXED);
    __atomic_store_n(&event->kind, kind, __ATOMIC_RELEASE);
  }
  if (printed(kind))
    print(kind, ordinal, now, a, b);
  DTRACE_PROBE4(gpushare, trace, (uint32_t)kind, ordinal, a, b);
}

uint64_t gs_held(int ordinal) {
  return __atomic_load_n(&gs_process->slot->device[ordinal].memory_bytes, __ATOMIC_RELAXED);
}

void gs_trace_joined(void) {
  struct gs_trace_ring *ring = ring_of(gs_process);
  if (ring && ring->generation != gs_process->generation) {
    memset(ring->event, 0, sizeof ring->event);
    __atomic_store_n(&ring->count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&ring->generation, gs_process->generation, __ATOMIC_RELEASE);
  }
  gs_trace(GS_TRACE_JOINED, -1, gs_process->slot_index, gs_process->generation);
}
